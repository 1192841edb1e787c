"""Optimizer and weights in host memory train on a CUDA device; `make test-gpu` runs this on one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import satrap
from satrap.batch import EmbeddedBatch
from satrap.checkpoint import read_checkpoint
from satrap.dense import MakeOptimizer, offload_weights, offloaded
from satrap.dense.memory.weight_offload import stay_off
from satrap.train import Trainer
from tests.train.plain import Batches, grouped, make_batches, make_schema

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device"),
]


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=False)


def trained(make: MakeOptimizer) -> tuple[list[Tensor], torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 200), nn.Linear(200, 1)).cuda()
    optimizer = make(list(model.parameters()))
    for _ in range(10):
        model(torch.randn(32, 64).cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().cpu() for p in model.parameters()], optimizer


@pytest.mark.parametrize("make", [adam, sgd])
@pytest.mark.parametrize("disk", [False, True])
def test_the_state_is_off_the_device_and_the_weights_are_equal_up_to_rounding(
    disk: bool, make: MakeOptimizer, tmp_path: Path
) -> None:
    plain, on_device = trained(make)
    mine, away = trained(offloaded(make, str(tmp_path) if disk else None))
    for one, two in zip(mine, plain, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)
    assert all(v.device.type == "cpu" for entry in away.state.values() for v in entry.values())
    away.load_state_dict(on_device.state_dict())
    assert all(v.device.type == "cpu" for entry in away.state.values() for v in entry.values())


class Tower(nn.Module):
    """Has layers large enough to come one at a time, and batch statistics.

    No bias before these: its gradient is nothing but rounding, and Adam makes whole steps of that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(25, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.ReLU())
        for _ in range(DEPTH):
            self.tower.append(nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        found: Tensor = self.head(self.tower(batch.flat()))
        return found


WIDTH, DEPTH = 512, 4


@pytest.mark.parametrize("disk", [False, True])
def test_weights_off_the_device_learn_the_same_up_to_rounding(disk: bool, tmp_path: Path) -> None:
    folder, found = str(tmp_path) if disk else None, list[dict[str, Tensor]]()
    batches = make_batches(4)
    for off in (False, True):
        torch.manual_seed(0)
        model: nn.Module = offload_weights(Tower(), folder) if off else Tower()
        make = offloaded(adam, folder) if off else adam
        arguments = {"dense_optimizer": make, "embedding_optimizer": satrap.optim.Adagrad(lr=0.05)}
        trainer = Trainer(
            model, make_schema(), **grouped(**arguments, mode="sync", clip_norm=1.0, device="cuda")
        )
        trainer.fit(Batches(batches), epochs=3)
        trainer.save(str(tmp_path / f"saved-{off}"))
        if off:
            assert {p.device.type for p in model.parameters()} == {"cpu"}
            assert disk or all(p.is_pinned() for p in model.parameters())
            trainer.state.restore(read_checkpoint(str(tmp_path / "saved-True")))
        found.append({name: tensor.cpu() for name, tensor in model.state_dict().items()})
        trainer.close()
    for name, one in found[0].items():
        torch.testing.assert_close(one, found[1][name], atol=1e-4, rtol=1e-4)


def test_the_device_holds_a_layer_at_a_time() -> None:
    torch.manual_seed(0)
    layers, width = 16, 2048
    model = offload_weights(nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))))
    stay_off(model, torch.device("cuda"))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model(torch.randn(32, width, device="cuda")).sum().backward()
    taken = torch.cuda.max_memory_allocated() - before
    assert taken < 5 * 4 * width * width
    assert all(p.grad is not None and p.grad.is_pinned() for p in model.parameters())
