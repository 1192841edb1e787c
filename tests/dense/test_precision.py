"""A network computes in a number format as it does under plain `torch.autocast`, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from satrap.dense.precision import check_precision, computed
from satrap.errors import ConfigError

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Linear(33, 1))


def gradients(model: nn.Module, logits: Tensor, x: Tensor) -> list[Tensor]:
    logits.square().mean().backward()
    found = [x.grad, *(p.grad for p in model.parameters())]
    assert all(g is not None and g.dtype == torch.float32 for g in found)
    return [g for g in found if g is not None]


def test_forward_and_backward_are_those_of_autocast_to_the_bit() -> None:
    x, y = (torch.randn(50, 7, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in "xy")
    model, plain = network(), network()
    mine = computed(lambda: model(x), "bfloat16", CPU)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        other = plain(y)
    assert (mine.dtype, other.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(mine, other.float())
    for a, b in zip(gradients(model, mine, x), gradients(plain, other.float(), y), strict=True):
        assert torch.equal(a, b)
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_float32_is_another_result_and_the_networks_own() -> None:
    model, x = network().eval(), torch.randn(50, 7)
    wide, short = (computed(lambda: model(x), name, CPU) for name in ("float32", "bfloat16"))
    assert torch.equal(wide, model(x))
    assert 1e-4 < (wide - short).abs().max() < 0.05


def test_a_precision_that_does_not_exist_is_refused() -> None:
    check_precision("bfloat16")
    with pytest.raises(ConfigError, match="'bf16' is unknown") as caught:
        check_precision("bf16")
    assert caught.value.fix == "use one of float32, bfloat16"
