"""The network's weights as rows of the store: the same steps as torch's, pulled and pushed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from satrap import optim
from satrap.dense.backends.parameter_server import RemoteStep, row_optimizer
from satrap.errors import ConfigError
from satrap.exchange import TableGroup
from satrap.schema import Table
from satrap.store import Admission
from tests.support.trainers import alone, assert_same, distributed
from tests.train.plain import Batches, Tower, make_batches

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_worker_without_staleness_takes_the_steps_of_sync(name: str) -> None:
    batches = Batches(make_batches(20))
    arguments: dict[str, Any] = {"dense_optimizer": OPTIMIZERS[name], "epochs": 2}
    reference = alone(batches, mode="sync", **arguments)
    answer = alone(batches, mode="async", staleness=0, **arguments)
    kept = answer.rows.pop("satrap.dense")
    assert kept[1].size >= sum(p.numel() for p in Tower().parameters())
    assert_same(answer, reference, 1e-5)


def test_workers_push_and_pull_without_waiting_and_end_with_equal_weights() -> None:
    parts = [make_batches(count, size=16, seed=rank) for rank, count in enumerate((30, 12))]
    answers = distributed(2, 2, lambda rank: Batches(parts[rank]), mode="async", staleness=2)
    assert [answer.result.steps for answer in answers] == [30, 12]
    assert [answer.result.samples for answer in answers] == [42 * 16] * 2
    assert answers[0].digest == answers[1].digest
    before = torch.nn.utils.parameters_to_vector(Tower().parameters()).detach().numpy()
    assert np.abs(answers[0].dense - before).max() > 0.01


@pytest.mark.parametrize("admission", [Admission(min_count=2), Admission(probability=0.3)])
def test_admission_leaves_out_no_weight_of_the_network(admission: Admission) -> None:
    arguments: dict[str, Any] = {"dense_optimizer": lambda p: torch.optim.SGD(p, lr=1e-9)}
    before = alone(Batches(make_batches(3)), mode="sync", **arguments)
    answer = alone(Batches(make_batches(3)), mode="async", admission=admission, **arguments)
    np.testing.assert_allclose(answer.dense, before.dense, atol=1e-6)


@pytest.mark.parametrize(
    ("numbers", "widths", "dim", "rows"),
    [(128, [], 64, 2), (129, [8, 63], 64, 3), (130, [65, 64], 66, 2), (1, [64], 65, 1), (0, [], 64, 0)],
)
def test_the_rows_of_the_network_have_a_width_of_their_own(
    numbers: int, widths: list[int], dim: int, rows: int
) -> None:
    model = torch.nn.ParameterList([torch.zeros(numbers)])
    step = RemoteStep(model, lambda p: torch.optim.SGD(p, lr=0.5), None)
    rule = optim.SGD(lr=0.5)
    assert step.tables(widths) == [Table("satrap.dense", dim=dim, optimizer=rule, initial_scale=0.0)]
    step.attach([TableGroup(0, ("user",), 4), TableGroup(2, ("satrap.dense",), dim)])
    [request] = step.requests
    assert (request.group, request.ids.tolist(), request.splits.tolist()) == (2, [*range(rows)], [0, rows])
    assert RemoteStep(model, None, None).tables(widths) == []


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9, nesterov=True),
            optim.SGD(lr=0.5, momentum=0.9, nesterov=True),
        ),
        (
            lambda p: torch.optim.Adagrad(p, lr=0.5, initial_accumulator_value=0.1, eps=1e-6),
            optim.Adagrad(lr=0.5, initial_accumulator=0.1, eps=1e-6),
        ),
        (
            lambda p: torch.optim.Adam(p, lr=0.5, betas=(0.8, 0.9), weight_decay=0.1),
            optim.Adam(lr=0.5, betas=(0.8, 0.9), weight_decay=0.1),
        ),
        (lambda p: torch.optim.AdamW(p, lr=0.5), optim.AdamW(lr=0.5, weight_decay=0.01)),
    ],
)
def test_translation(make: Make, expected: optim.Optimizer) -> None:
    assert row_optimizer(make([torch.nn.Parameter(torch.zeros(2))])) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.optim.Adam(p, amsgrad=True), "Adam has amsgrad=True"),
        (lambda p: torch.optim.Adagrad(p, lr_decay=0.1), "Adagrad has lr_decay=0.1"),
        (lambda p: torch.optim.RMSprop(p), "RMSprop is not supported"),
        (lambda p: torch.optim.SGD([{"params": p}, {"params": []}], lr=1.0), "several parameter groups"),
    ],
)
def test_what_the_store_cannot_execute_is_refused(make: Make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        row_optimizer(make([torch.nn.Parameter(torch.zeros(2))]))
