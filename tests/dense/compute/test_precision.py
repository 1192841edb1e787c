"""A network computes, and its loss is scaled, as by plain `torch.autocast` and `GradScaler`, to the bit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from satrap.dense import DataParallelBackend, Workers
from satrap.dense.compute import precision
from satrap.dense.compute.precision import LossScale, check_precision, computed
from satrap.errors import ConfigError
from tests.dense.steps import stepped
from tests.dense.threads import together

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
    assert caught.value.fix == "use one of float32, bfloat16, float16"


def test_the_loss_scale_follows_the_rule_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "GROWTH_INTERVAL", 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
    scale, parameter = LossScale("float16"), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    random = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(300):
        accepted = bool(torch.rand(1, generator=random) < 0.8)
        parameter.grad = None
        scaler.scale(parameter * (1.0 if accepted else math.inf)).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        assert scale.update(accepted) == (scaler.get_scale() < before)
        assert scale.value == scaler.get_scale()
        seen.add(scale.value)
    assert len(seen) > 5


def test_the_scale_stays_within_its_bounds() -> None:
    scale = LossScale("float16")
    assert [scale.update(False) for _ in range(18)] == [True] * 16 + [False] * 2
    assert scale.value == 1
    scale.restore(2.0**127, 1999)
    assert not scale.update(True)
    assert (scale.value, scale.accepted) == (2.0**127, 0)
    for value, accepted in ((0.5, 0), (3.0, 0), (math.inf, 0), (math.nan, 0), (2.0, -1), (2.0, 2000)):
        with pytest.raises(ValueError, match="loss scale"):
            scale.restore(value, accepted)


@pytest.mark.parametrize(
    ("value", "accepted", "possible"),
    [
        (1.0, 0, True),
        (2.0**127, 1999, True),
        (0.5, 0, False),
        (2.0**128, 0, False),
        (3.0, 0, False),
        (1.0, -1, False),
        (1.0, 2000, False),
    ],
)
def test_every_scale_that_there_can_be_is_restored_and_no_other(
    value: float, accepted: int, possible: bool
) -> None:
    scale = LossScale("float16")
    if possible:
        scale.restore(value, accepted)
        assert (scale.value, scale.accepted) == (value, accepted)
    else:
        with pytest.raises(ValueError, match="the loss scale is"):
            scale.restore(value, accepted)
        assert (scale.value, scale.accepted) == (LossScale("float16").value, 0)


def test_only_float16_scales() -> None:
    for name in ("float32", "bfloat16"):
        scale = LossScale(name)
        scale.restore(1024.0, 5)
        assert not scale.update(False)
        assert (scale.value, scale.accepted) == (1, 0)


def test_steps_in_float16_are_those_of_torch_with_its_scaler_to_the_bit() -> None:
    """Rows and weights; the first steps overflow, and nothing changes."""
    (mine, plain), leaves = (network().eval() for _ in range(2)), torch.full((2, 50, 7), 0.25).unbind()
    row, leaf = (one.clone().requires_grad_() for one in leaves)
    dense = DataParallelBackend(mine, lambda p: torch.optim.SGD(p, lr=1e-5), None, precision="float16")
    optimizer = torch.optim.SGD([*plain.parameters(), leaf], lr=1e-5)
    scaler, said = torch.amp.GradScaler("cpu"), []
    for step in range(12):
        x = torch.randn(50, 7, generator=torch.Generator().manual_seed(step))
        row.grad = leaf.grad = None
        loss = computed(lambda x=x: mine(x + row), "float16", CPU).square().mean() * 3e3
        done = stepped(dense, loss, [row])
        said.append((done.accepted, done.rescaled))
        if done.accepted:
            row.data -= 1e-5 * row.grad
        with torch.autocast("cpu", dtype=torch.float16):
            logits = plain(x + leaf)
        optimizer.zero_grad()
        scaler.scale(logits.float().square().mean() * 3e3).backward()
        scaler.step(optimizer)
        scaler.update()
        assert dense.scale.value == scaler.get_scale()
    refused = [accepted for accepted, _ in said].index(True)
    assert refused > 1
    assert said == [(False, True)] * refused + [(True, False)] * (12 - refused)
    assert torch.equal(row, leaf)
    assert not torch.equal(row, leaves[0])
    for a, b in zip(mine.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


def test_workers_lower_the_scale_together() -> None:
    def work(workers: Workers) -> list[Any]:
        model = nn.Linear(3, 1)
        nn.init.ones_(model.weight)
        dense = DataParallelBackend(model, lambda p: torch.optim.SGD(p, lr=0.1), None, workers, "float16")
        x, said = torch.ones(4, 3), []
        for step in range(3):  # the gradients of one overflow in the second step
            size = 2.0**12 if (step, workers.rank) == (1, 1) else 2.0**-10
            done = stepped(dense, computed(lambda s=size: model(x * s), "float16", CPU).mean() / 4)
            said.append((done.accepted, done.rescaled, dense.scale.value))
        return [said, [p.detach().numpy().tobytes() for p in model.parameters()]]

    first, second = together(2, work)
    assert first[0] == [(True, False, 2.0**16), (False, True, 2.0**15), (True, False, 2.0**15)]
    assert first[0] == second[0]
