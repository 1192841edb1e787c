"""Optimizers of a network in parts, and what it sends; what it learns: `test_backend`, `test_meshes`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from satrap.dense import Mesh
from satrap.dense.backends.sharded import ShardedBackend, check_separable
from satrap.errors import ConfigError
from satrap.settings.mesh import Sharded
from tests.tools.plan.dense.measured import Pretended, adam


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=0.1),
    ],
)
def test_optimizers_that_look_at_each_number_by_itself(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    check_separable(make)


def test_an_optimizer_that_looks_at_whole_weights_is_refused() -> None:
    with pytest.raises(ConfigError, match="Adafactor cannot be combined with a sharded network"):
        check_separable(lambda p: torch.optim.Adafactor(p, lr=0.1))


class Calls(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.of = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.of[func._opname] += 1
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(
    ("sharded", "gathered", "reduced"), [(True, 6, 3), ("gradients", 3, 3), ("optimizer", 1, 1)]
)
def test_how_often_three_parts_of_a_batch_gather_weights_and_reduce_gradients(
    sharded: Sharded, gathered: int, reduced: int
) -> None:
    """There are two processes, but only this one exists; its network is gathered at once."""
    try:
        dense = ShardedBackend(nn.Linear(3, 2), adam, None, Pretended(Mesh(2, sharded=sharded), 0))
        x = torch.ones(4, 3)
        for _ in range(2):
            with Calls() as calls:
                for _ in range(2):
                    dense.backward(dense.model(x).sum(), 0.3, last=False)
                dense.backward(dense.model(x).sum(), 0.4)
                dense.step([], 1.0).result()
            assert (calls.of["_allgather_base_"], calls.of["_reduce_scatter_base_"]) == (gathered, reduced)
    finally:
        dist.destroy_process_group()


def test_gradients_of_parts_whose_step_never_comes_are_forgotten() -> None:
    try:
        dense = ShardedBackend(nn.Linear(3, 2), adam, None, Pretended(Mesh(2, sharded="optimizer"), 0))
        dense.backward(dense.model(torch.ones(4, 3)).sum(), 1.0, last=False)
        assert all(p.grad is not None for p in dense.model.parameters())
        dense.forget()
        assert all(p.grad is None for p in dense.model.parameters())
    finally:
        dist.destroy_process_group()


def test_a_part_without_an_optimizer_says_where_it_belongs() -> None:
    try:
        model = nn.Linear(3, 2)
        part = ShardedBackend(model, None, None, Pretended(Mesh(2, sharded=True), 1)).part()
        assert part.optimizer == {}
        assert part.regions == {"weight": ([2, 3], [1, 0]), "bias": ([2], [1])}
        assert {name: tensor.shape for name, tensor in part.weights.items()} == {
            "weight": (1, 3),
            "bias": (1,),
        }
    finally:
        dist.destroy_process_group()
