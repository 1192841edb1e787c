"""Compressed means are those of a plain loop over all workers, and what a step leaves out comes later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from satrap.dense import DataParallelBackend, Workers
from satrap.dense.comm.compressed_gradients import (
    LARGEST,
    PowerSGD,
    compressed,
    kept_bytes,
    sent_bytes,
    thin,
)
from satrap.dense.comm.workers import Compression
from tests.dense.steps import stepped
from tests.dense.threads import together

SHAPES = ((24, 40), (24,), (3, 4), (), (20, 3, 9))
"""Of these "powersgd 2" compresses the first and the last."""

STEPS, REFUSED = 7, 3
Gradients = list[np.ndarray | None]


def gradients(step: int, worker: int) -> Gradients:
    """Of a worker; the second is missing everywhere in step 2, and with worker 1 in step 4."""
    random = np.random.default_rng([step, worker])
    found: Gradients = [random.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    if step == 2 or (step, worker) == (4, 1):
        found[1] = None
    return found


class Loop:
    """The oracle: one process, in float64, with the errors of all workers."""

    def __init__(self, world: int, first: Sequence[np.ndarray]) -> None:
        self.factors = list(first)
        self.errors = [[np.zeros(shape) for shape in SHAPES] for _ in range(world)]

    def step(self, given: list[Gradients]) -> Gradients:
        means: Gradients = []
        for n, shape in enumerate(SHAPES):
            own = [np.zeros(shape) if one[n] is None else one[n].astype(float) for one in given]  # type: ignore[union-attr]
            terms = [g + errors[n] for g, errors in zip(own, self.errors, strict=True)]
            if all(one[n] is None for one in given):
                means.append(None)
                continue
            if n not in (0, 4):
                means.append(np.mean(own, 0))
                continue
            sent = self.products(n, terms)
            for errors, term, one in zip(self.errors, terms, sent, strict=True):
                errors[n] = term - one
            means.append(np.mean(sent, 0))
        return means

    def products(self, n: int, terms: list[np.ndarray]) -> list[np.ndarray]:
        matrices = [term.reshape(len(term), -1) for term in terms]
        q = np.linalg.qr(self.factors[n])[0]
        p = np.linalg.qr(sum(matrix @ q for matrix in matrices))[0]
        self.factors[n] = np.mean([matrix.T @ p for matrix in matrices], 0)
        return [(p @ self.factors[n].T).reshape(terms[0].shape)] * len(terms)


def averaged(world: int, work: Callable[[PowerSGD, Workers, list[nn.Parameter]], Any]) -> list[Any]:
    """What each worker makes of its parameters and its way to average them."""

    def run(workers: Workers) -> Any:
        parameters = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        way = compressed(parameters, workers.data)
        assert way is not None
        return work(way, workers, parameters)

    return together(world, run, dense="powersgd 2")


def steps(way: PowerSGD, workers: Workers, parameters: list[nn.Parameter]) -> list[list[Tensor | None]]:
    found = []
    for step in range(STEPS):
        for p, g in zip(parameters, gradients(step, workers.rank), strict=True):
            p.grad = None if g is None else torch.from_numpy(np.array(g))
        bad = step == REFUSED and workers.rank == 1
        if bad:
            parameters[0].grad.fill_(float("nan"))  # type: ignore[union-attr]
        said = way.average([1.0, float(workers.rank)], refused=bad)
        assert said == [workers.size, sum(range(workers.size))]
        found.append([None if p.grad is None else p.grad.clone() for p in parameters])
    return found


def first_factors(way: PowerSGD, *_: Any) -> list[np.ndarray]:
    found = [np.zeros(0)] * len(SHAPES)
    for n, q in way.factors.items():
        found[n] = q.double().numpy()
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_means_are_those_of_a_loop_over_all_workers(world: int) -> None:
    loop = Loop(world, averaged(world, first_factors)[0])
    found = averaged(world, steps)
    for step in range(STEPS):
        if step == REFUSED:
            assert found[0][step] == [None] * len(SHAPES)
            continue
        for n, expected in enumerate(loop.step([gradients(step, worker) for worker in range(world)])):
            mine = [one[step][n] for one in found]
            if expected is None:
                assert mine == [None] * world
                continue
            assert all(torch.equal(one, mine[0]) for one in mine)
            np.testing.assert_allclose(mine[0].numpy(), expected, atol=3e-5)


def test_what_is_left_out_is_in_the_errors() -> None:
    def left(way: PowerSGD, *given: Any) -> tuple[list[Any], dict[int, Tensor]]:
        return steps(way, *given), way.errors

    found = averaged(2, left)
    for n, error in found[0][1].items():
        given = [gradients(s, w)[n] for s in range(STEPS) if s != REFUSED for w in (0, 1)]
        whole = sum(g for g in given if g is not None) / 2
        came = sum(step[n] for step in found[0][0] if step[n] is not None)
        np.testing.assert_allclose(came.numpy(), whole - (error + found[1][1][n]).numpy() / 2, atol=1e-5)
        assert float((came - torch.as_tensor(whole)).abs().max()) > 0.1 or error.numel() == 1


def test_a_matrix_that_can_be_sent_exactly_comes_at_once() -> None:
    """A product of thin matrices is one."""

    def one(way: PowerSGD, workers: Workers, parameters: list[nn.Parameter]) -> Tensor:
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 2.0 + workers.rank)
        way.average([], refused=False)
        return torch.cat([p.grad.view(-1) for p in parameters])  # type: ignore[union-attr]

    torch.testing.assert_close(averaged(2, one)[0], torch.full((1537,), 2.5))


def test_after_a_gradient_of_zeros_others_come() -> None:
    def two(way: PowerSGD, workers: Workers, parameters: list[nn.Parameter]) -> float:
        for value in (0.0, 1.0):
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            parameters[0].grad[12:, 20:] = value  # type: ignore[index]
            way.average([], refused=False)
        return float(parameters[0].grad.abs().sum())  # type: ignore[union-attr]

    assert averaged(2, two)[0] > 100


def test_a_resumed_worker_goes_on_to_the_bit() -> None:
    def resumed(way: PowerSGD, workers: Workers, parameters: list[nn.Parameter]) -> list[bool]:
        steps(way, workers, parameters)
        kept = {name: t.clone() for name, t in way.state().items()}
        on = steps(way, workers, parameters)
        again = compressed(parameters, workers.data)
        assert again is not None
        afresh = steps(again, workers, parameters)
        again.restore(kept)
        same = steps(again, workers, parameters)
        return [
            torch.equal(mine[0], other[0])  # type: ignore[arg-type]
            for mine, other in ((on[-1], same[-1]), (on[-1], afresh[-1]))
        ]

    assert averaged(2, resumed) == [[True, False]] * 2


def test_how_much_is_left_out_is_measured() -> None:
    def measured(way: PowerSGD, workers: Workers, parameters: list[nn.Parameter]) -> float | None:
        assert workers.data.rounding is None
        parameters[0].grad = torch.from_numpy(np.array(gradients(0, 0)[0]))
        way.average([], refused=False)
        return workers.data.rounding

    found = averaged(2, measured)
    matrix = np.array(gradients(0, 0)[0], np.float64)
    least = np.sqrt(1 - (np.linalg.svd(matrix)[1][:2] ** 2).sum() / (matrix**2).sum())
    assert least - 1e-6 <= found[0] <= 1 + 1e-6


@pytest.mark.parametrize("world", [2, 4])
def test_the_bytes_that_are_predicted_are_sent(world: int) -> None:
    def sent(way: PowerSGD, workers: Workers, parameters: list[nn.Parameter]) -> float:
        count, group = 0.0, type(workers.data)

        class Counted(group):  # type: ignore[misc, valid-type]
            def sum(self, tensor: Tensor, **given: Any) -> None:
                nonlocal count
                count += 2 * (world - 1) / world * 4 * tensor.numel()
                super().sum(tensor, **given)

        workers.data.__class__ = Counted
        for p, g in zip(parameters, gradients(0, workers.rank), strict=True):
            p.grad = torch.from_numpy(np.array(g))
        way.average([], refused=False)
        return count

    head = 4 * (1 + len(SHAPES)) * (world - 1) * 2 / world
    assert averaged(world, sent)[0] == sent_bytes(Compression(2), SHAPES, world) + head


def test_only_matrices_that_are_much_smaller_as_products_are_compressed() -> None:
    assert [thin(shape, 2) for shape in SHAPES] == [True, False, False, False, True]
    assert not thin((24, 40), 8)
    assert not thin((0, 5), 1)
    # 2 rank (n + m) < n m
    assert [thin(shape, 1) for shape in ((4, 4), (4, 5), (5, 4), (2, 2, 4), (20,), ())] == [
        *(False, True, True, False, False, False)
    ]
    assert [thin((24, 40), rank) for rank in (7, 8)] == [True, False]


def test_what_is_kept_is_errors_and_factors() -> None:
    expected = 4 * (24 * 40 + 2 * 40 + 20 * 27 + 2 * 27)
    assert kept_bytes(Compression(2), SHAPES) == expected
    assert averaged(2, lambda way, *_: sum(t.nbytes for t in way.state().values())) == [expected] * 2


def test_gradients_whose_products_might_overflow_are_refused() -> None:
    def work(workers: Workers) -> list[bool]:
        model = nn.Linear(40, 24)
        dense = DataParallelBackend(model, lambda p: torch.optim.SGD(p, lr=1e-30), None, workers)
        dense.begin()
        said = []
        for factor in (0.4, 0.6):
            loss = model(torch.full((1, 40), factor * LARGEST)).sum()
            said.append(stepped(dense, loss).accepted)
        return [*said, all(bool(p.isfinite().all()) for p in model.parameters())]

    assert together(2, work, dense="powersgd 2") == [[True, False, True]] * 2


def test_one_worker_compresses_nothing() -> None:
    assert together(
        1, lambda workers: compressed([nn.Parameter(torch.zeros(9, 9))], workers.data), dense="powersgd 2"
    ) == [None]
