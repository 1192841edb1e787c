"""An optimizer in host memory trains weights on a CUDA device; `make test-gpu` runs this on one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from satrap.dense import MakeOptimizer, offloaded

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device"),
]


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def trained(make: MakeOptimizer) -> tuple[list[Tensor], torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
    optimizer = make(list(model.parameters()))
    for _ in range(10):
        model(torch.randn(32, 64).cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().cpu() for p in model.parameters()], optimizer


@pytest.mark.parametrize("disk", [False, True])
def test_the_state_is_off_the_device_and_the_weights_are_equal_up_to_rounding(
    disk: bool, tmp_path: Path
) -> None:
    plain, on_device = trained(adam)
    mine, away = trained(offloaded(adam, str(tmp_path) if disk else None))
    for one, two in zip(mine, plain, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)
    assert all(v.device.type == "cpu" for entry in away.state.values() for v in entry.values())
    away.load_state_dict(on_device.state_dict())
    assert all(v.device.type == "cpu" for entry in away.state.values() for v in entry.values())
