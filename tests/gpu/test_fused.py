"""Steps that a CUDA device leaves out by itself are those of the CPU, where the host looks first."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from satrap.dense import DataParallelBackend
from satrap.dense.compute.fused import can_leave_out
from tests.dense.steps import stepped

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device"),
]


def trained(device: str, clip_norm: float | None, precision: str) -> tuple[list[Any], list[Tensor]]:
    """Take steps of which two are bad; return what each said, and rows' gradients, weights and state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1)).to(device)
    adam = partial(torch.optim.Adam, lr=0.05)
    dense = DataParallelBackend(model, adam, clip_norm, precision=precision)
    said, found = [], list[Tensor]()
    for number, factor in enumerate([1.0, 1.0, float("nan"), 1.0, float("inf"), 1.0]):
        x = torch.randn(6, 5, generator=torch.Generator().manual_seed(number)).to(device)
        rows = torch.full((6, 5), 0.25, device=device, requires_grad=True)
        loss = model(x + rows).square().mean() * factor
        done = stepped(dense, loss, [rows])
        said.append((done.accepted, done.rescaled, done.loss if done.accepted else None))
        if done.accepted:
            assert rows.grad is not None
            found.append(rows.grad.cpu())
    assert dense.optimizer is not None
    assert can_leave_out(dense.optimizer) == (device == "cuda")
    state = [value for entry in dense.optimizer.state.values() for value in entry.values()]
    return said, [*found, *(t.detach().cpu() for t in [*model.parameters(), *state])]


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_bad_steps_are_left_out_and_others_are_those_of_the_cpu(
    clip_norm: float | None, precision: str
) -> None:
    said, found = trained("cuda", clip_norm, precision)
    expected, there = trained("cpu", clip_norm, precision)
    assert [one[:2] for one in said] == [one[:2] for one in expected]
    for one, two in zip(said, expected, strict=True):
        assert one[2] == (two[2] if two[2] is None else pytest.approx(two[2], rel=1e-5))
    for mine, theirs in zip(found, there, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
