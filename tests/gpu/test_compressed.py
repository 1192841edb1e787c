"""Gradients on a CUDA device are compressed as on the CPU; `make test-gpu` runs this where there is one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from satrap.dense.comm.compressed_gradients import compressed
from satrap.dense.comm.workers import Compression, WorkerGroup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device"),
]


class Twice(WorkerGroup):
    """A process whose partner has the same gradients."""

    size = 2

    def __init__(self) -> None:
        self.compression = Compression(2)

    def sum(self, tensor: Tensor, *, exact: int | None = None) -> None:
        tensor.mul_(2)


def test_a_device_compresses_as_the_cpu_does() -> None:
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Linear(40, 24).to(device)
        way = compressed(list(model.parameters()), Twice())
        assert way is not None
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape).to(device)
            way.average([], refused=False)
        found.append([p.grad.cpu() for p in model.parameters()])  # type: ignore[union-attr]
    for on_cpu, on_device in zip(*found, strict=True):
        torch.testing.assert_close(on_device, on_cpu, atol=1e-4, rtol=1e-4)
