from __future__ import annotations

import pytest
import torch
from torch import nn

from satrap.dense import MakeOptimizer, Mesh
from satrap.tools.plan.dense.network import KINDS, Need, OptimizerCosts, all_reduce, largest_layer, size_of


@pytest.mark.parametrize(
    ("make", "state", "beside"),
    [
        (lambda p: torch.optim.SGD(p, lr=1.0), 0, 0),
        (lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9), 4, 0),
        (lambda p: torch.optim.Adagrad(p, lr=1.0), 4, 4),
        (lambda p: torch.optim.Adam(p, lr=1.0), 8, 4),
    ],
)
def test_what_optimizers_keep_and_need(make: MakeOptimizer, state: int, beside: int) -> None:
    found = OptimizerCosts.of(make)
    assert found.state == state
    assert beside <= found.beside <= beside + 4


def test_a_need_adds_up() -> None:
    need = Need(
        Mesh(pipeline=2, microbatches=3), {"parameters": 3, "rows": 4}, {"gradients": 1.5, "rows": 2.0}
    )
    assert (need.peak, need.traffic, need.bubble) == (7, 3.5, 1 / 4)
    plain = need.to_dict()
    assert plain["memory"] == dict.fromkeys(KINDS, 0) | {"parameters": 3, "rows": 4, "peak": 7}
    assert Need(Mesh(4), {}).bubble == 0


def test_an_optimizer_that_is_elsewhere_takes_less() -> None:
    rates = OptimizerCosts(8.0, 4.0)
    assert [rates.away(where) for where in ("", "disk", "cpu")] == [
        rates,
        OptimizerCosts(0.0, 12.0),
        OptimizerCosts(0.0, 0.0),
    ]


def test_the_largest_layer_has_most_weights_of_its_own() -> None:
    model = nn.Sequential(nn.Linear(5, 2), nn.Sequential(nn.Linear(3, 4), nn.Linear(2, 3)))
    assert largest_layer(model) == 4 * (3 * 4 + 4)


def test_a_ring_sends_each_part_twice() -> None:
    assert (all_reduce(100, 1), all_reduce(100, 2), all_reduce(100, 4)) == (0, 100, 150)
    assert size_of(torch.zeros(3, dtype=torch.bfloat16)) == 6
