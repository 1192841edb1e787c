"""Steps of an optimizer whose state is elsewhere are its steps."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from satrap.dense.memory.optimizer_offload import offloaded
from satrap.errors import ConfigError
from tests.dense.networks import OPTIMIZERS
from tests.support.containers import container


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(shape)) for shape in ((5, 7), (7,), (), (0, 3))]


def train(own: list[nn.Parameter], optimizer: torch.optim.Optimizer, first: int, last: int) -> list[Tensor]:
    for step in range(first, last):
        torch.manual_seed(step)
        for n, parameter in enumerate(own):
            parameter.grad = torch.randn(parameter.shape) if (n, step) != (1, 2) else None
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in own]


def plain(state: dict[str, Any]) -> list[Any]:
    entries = [(n, k, v.tolist()) for n, e in state["state"].items() for k, v in e.items()]
    return [sorted(entries, key=str), state["param_groups"]]


@pytest.fixture(params=["host", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return str(tmp_path) if request.param == "disk" else None


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_and_state_are_those_of_the_optimizer_to_the_bit(name: str, folder: str | None) -> None:
    make = OPTIMIZERS[name]
    mine, other = parameters(), parameters()
    away, here = offloaded(make, folder)(mine), make(other)
    for one, two in zip(train(mine, away, 0, 6), train(other, here, 0, 6), strict=True):
        assert torch.equal(one, two)
    assert plain(away.state_dict()) == plain(here.state_dict())


@pytest.mark.parametrize("to_plain", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_saved_state_goes_on_with_either(name: str, to_plain: bool, folder: str | None) -> None:
    make = OPTIMIZERS[name]
    mine, other = parameters(), parameters()
    first = offloaded(make, folder)(mine)
    train(mine, first, 0, 3)
    second = make(other) if to_plain else offloaded(make, folder)(other)
    second.load_state_dict(deepcopy(first.state_dict()))
    for one, two in zip(mine, other, strict=True):
        two.data.copy_(one.data)
    for one, two in zip(train(mine, first, 3, 6), train(other, second, 3, 6), strict=True):
        assert torch.equal(one, two)


def test_on_a_disk_each_tensor_of_the_state_is_a_file_without_a_name(tmp_path: Path) -> None:
    own = parameters()
    optimizer = offloaded(OPTIMIZERS["adam"], str(tmp_path))(own)
    train(own, optimizer, 0, 2)
    kept = [v for e in optimizer.state.values() for v in e.values() if v.ndim and v.numel()]
    assert len(kept) == 2 * 3
    assert all(str(tmp_path) in str(tensor.untyped_storage().filename) for tensor in kept)
    assert list(tmp_path.iterdir()) == []
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert mapped.count(f"{tmp_path}/satrap-") == len(kept)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as caught:
        offloaded(OPTIMIZERS["adam"], str(tmp_path / "none"))(parameters())
    assert str(tmp_path / "none") in str(caught.value.where)


def test_a_disk_without_room(tmp_path: Path) -> None:
    own = [nn.Parameter(torch.ones(4096))]
    optimizer = offloaded(OPTIMIZERS["adam"], str(tmp_path))(own)
    own[0].grad = torch.ones(4096)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with pytest.raises(ConfigError, match="cannot offload to this disk: File too large"):
            optimizer.step()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


TRAINING = """
import sys, torch
from torch import nn
from satrap.dense import offloaded
from satrap.runtime.malloc import keep_freed_memory

folder, group = sys.argv[1:]
keep_freed_memory()  # as a worker does
torch.set_num_threads(1)
torch.manual_seed(0)
make = lambda p: torch.optim.Adam(p, lr=1e-3)
small = nn.Linear(2, 2)
small(torch.ones(1, 2)).sum().backward()
make(list(small.parameters())).step()  # what PyTorch loads for a first step counts for nothing
open(group, "w").write("0")
model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(24)))
optimizer = (offloaded(make, folder) if folder else make)(list(model.parameters()))
for step in range(3):
    model(torch.randn(8, 1024)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print([p.double().sum().item() for p in model.parameters()])
"""


@pytest.mark.cluster
def test_a_network_trains_whose_state_has_no_room_in_memory(tmp_path: Path) -> None:
    """101 MB of weights, as many of gradients, and 201 MB of Adam's state in a container of 300 MB."""

    def run(folder: str, group: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", TRAINING, folder, group]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    plain = run("", os.devnull)
    with container(300_000_000) as group:
        without, on_disk = run("", group), run(str(tmp_path), group)
    assert (plain.returncode, on_disk.returncode) == (0, 0), on_disk.stderr
    assert on_disk.stdout == plain.stdout
    assert without.returncode == -signal.SIGKILL
