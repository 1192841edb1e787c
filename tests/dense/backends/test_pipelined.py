"""A stage's part of optimizer and checkpoint; its passes are in `tests/cluster/test_pipelines.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from satrap.batch import EmbeddedBatch
from satrap.dense import ConnectedWorkers, DataParallelBackend, DenseState, Mesh, WorkerGroup
from satrap.dense.backends.pipelined import PipelinedBackend
from satrap.errors import ConfigError
from tests.dense.fake_group import playing
from tests.dense.steps import stepped

MESH = Mesh(pipeline=3)


@pytest.fixture(autouse=True)
def process_group() -> Iterator[None]:
    with playing(0, 1):
        yield


class OneStage(ConnectedWorkers):
    """A process of a pipeline whose other processes do not exist."""

    def __init__(self, stage: int) -> None:
        self.rank, self.size, self.mesh, self._stage = stage, 3, MESH, stage

    def sum(self, tensor: Tensor, *, exact: int | None = None) -> None:
        return

    def broadcast(self, tensors: Any) -> None:
        return

    def share(self, data: bytes) -> bytes:
        return data

    def count(self, values: Sequence[float]) -> list[float]:
        return [self.size * value for value in values]

    def pipeline_group(self, device: str) -> Any:
        return None

    def device_mesh(self, device: str) -> Any:
        return init_device_mesh(device, (1, 1, 1), mesh_dim_names=("replicate", "shard", "tensor"))

    @property
    def data(self) -> WorkerGroup:
        return WorkerGroup()

    @property
    def pipeline(self) -> WorkerGroup:
        group = WorkerGroup()
        group.rank, group.size = self._stage, 3
        return group

    @property
    def tensor(self) -> WorkerGroup:
        return WorkerGroup()

    def watched(self, stage: str) -> AbstractContextManager[None]:
        return nullcontext()


def stage_of(number: int, make: Callable[..., torch.optim.Optimizer], seed: int = 0) -> PipelinedBackend:
    stage = PipelinedBackend(network(seed), make, None, OneStage(number))
    stage.try_out(blank())
    return stage


class Numbered(nn.Linear):
    """A layer with a buffer."""

    def __init__(self, number: float) -> None:
        super().__init__(4, 4)
        self.register_buffer("kept", torch.tensor(number))


class Start(nn.Module):
    def forward(self, batch: EmbeddedBatch) -> Tensor:
        return batch.numeric


def blank() -> EmbeddedBatch:
    return EmbeddedBatch(2, {}, torch.randn(2, 4))


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(Start(), *(Numbered(seed + i) for i in range(4)), nn.Linear(4, 1))


def groups(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Matrices and vectors learn in different ways."""
    return [
        {"params": [p for p in parameters if p.ndim == 1], "lr": 0.5},
        {"params": [p for p in parameters if p.ndim > 1], "lr": 0.1},
    ]


MAKERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(groups(p)),
    "adagrad": lambda p: torch.optim.Adagrad(groups(p), initial_accumulator_value=0.1),  # has state at once
}


def take(dense: DataParallelBackend, steps: range) -> None:
    """Take steps with gradients that depend on the weight's name and the step only."""
    named = [(n, p) for n, p in dense.model.named_parameters() if any(p is one for one in dense.parameters)]
    for step in steps:
        for name, p in named:
            torch.manual_seed(step * 1000 + sum(name.encode()))
            p.grad = torch.randn(p.shape)
        if isinstance(dense, PipelinedBackend):
            stepped(dense, torch.tensor(1.0))
        else:
            dense._take(1.0)


def together(stages: list[PipelinedBackend]) -> DenseState:
    parts = [stage.part() for stage in stages]
    whole = DenseState()
    for part in parts:
        assert not whole.weights.keys() & part.weights.keys()
        state = whole.optimizer.get("state", {}) | part.optimizer["state"]
        whole = DenseState({**whole.weights, **part.weights}, {**part.optimizer, "state": state})
    return whole


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    else:
        assert found == expected


@pytest.mark.pytorch("2.13")
@pytest.mark.parametrize("name", MAKERS)
def test_parts_of_all_stages_are_the_state_of_a_whole_network_and_back(name: str) -> None:
    make = MAKERS[name]
    plain = DataParallelBackend(network(), make, None)
    stages = [stage_of(number, make) for number in range(3)]
    for dense in (plain, *stages):
        take(dense, range(2))
    expected, found = plain.part(), together(stages)
    assert_same(found.weights, expected.weights)
    assert_same(found.optimizer, expected.optimizer)

    others = [stage_of(number, make, 9) for number in range(3)]
    for other in others:
        other.restore(found)
    for dense in (plain, *others):
        take(dense, range(2, 4))
    expected, found = plain.part(), together(others)
    assert_same(found.weights, expected.weights)
    assert_same(found.optimizer, expected.optimizer)


@pytest.mark.pytorch("2.13")
def test_stages_take_a_part_of_a_network_and_keep_the_rest() -> None:
    plain = DataParallelBackend(network(), MAKERS["adam"], None).part().weights
    taken = {name: tensor for name, tensor in plain.items() if not name.endswith("bias")}
    stages = [stage_of(number, MAKERS["adam"], 9) for number in range(3)]
    before = together(stages).weights
    kept = {name: tensor.clone() for name, tensor in before.items() if name not in taken}
    for stage in stages:
        stage.restore(DenseState(taken, partial=True))
    assert kept
    assert_same(together(stages).weights, {name: {**taken, **kept}[name] for name in before})


@pytest.mark.pytorch("2.13")
def test_a_stage_lets_go_of_the_weights_of_others_after_it_was_tried_out() -> None:
    stage = stage_of(1, MAKERS["adam"])
    real = [name for name, p in stage.model.named_parameters() if not p.is_meta]
    assert sorted(real) == sorted(name for name in stage.part().weights if "kept" not in name)
    assert 0 < len(real) < len(list(stage.model.parameters()))


class Other(nn.Module):
    """Its chain forgets what `forward` does at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.start = Start()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))

    def chain(self) -> list[Any]:
        return [self.start, *self.layers]

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        found: Tensor = self.layers(batch.numeric) * 2
        return found


@pytest.mark.pytorch("2.13")
def test_a_chain_that_is_not_the_network_is_refused() -> None:
    stage = PipelinedBackend(Other(), None, None, OneStage(0))
    with pytest.raises(ConfigError, match="the chain of Other does not compute the same as its forward"):
        stage.try_out(blank())


@pytest.mark.pytorch("2.13")
def test_one_stage_that_refuses_a_step_takes_none() -> None:
    stage = stage_of(0, MAKERS["adam"])
    before = {name: weight.clone() for name, weight in stage.part().weights.items()}
    stage.parameters[0].grad = torch.full_like(stage.parameters[0], float("nan"))
    assert not stepped(stage, torch.tensor(1.0)).accepted
    assert_same(stage.part().weights, before)
