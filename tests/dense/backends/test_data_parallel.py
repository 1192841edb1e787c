"""The step that workers take together, against one worker with the joined batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from satrap.dense import DataParallelBackend, DenseState, StepResult, Workers
from satrap.errors import ConfigError
from tests.dense.steps import stepped
from tests.dense.threads import together


def network() -> nn.Linear:
    model = nn.Linear(3, 1, bias=False)
    nn.init.constant_(model.weight, 0.5)
    return model


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def data(rank: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(size, 3, generator=generator), torch.randn(size, 1, generator=generator)


SIZES = (4, 2, 0)
FORMATS = ("float32", "bfloat16", "float16", "int8")


def one(workers: Workers, rows: list[Tensor], **arguments: Any) -> tuple[StepResult, Tensor, Any]:
    """A step of a worker with SIZES[rank] samples; return it, the weights and the rows' gradient."""
    model, size = network(), SIZES[workers.rank]
    factor = arguments.pop("factor", 1.0)
    step = DataParallelBackend(model, sgd, arguments.pop("clip_norm", None), workers)
    x, y = data(workers.rank, size)
    leaf = torch.full((1, 3), 0.25, requires_grad=True)
    loss = ((model(x + leaf) - y) ** 2).mean() * factor if size else None
    share = len(SIZES) * size / sum(SIZES)
    done = stepped(step, loss, [leaf] if size else [], share=share, **arguments)
    return done, model.weight.detach().clone(), leaf.grad


def joined(clip_norm: float | None = None) -> tuple[StepResult, Tensor, Tensor]:
    model = network()
    parts = [data(rank, size) for rank, size in enumerate(SIZES)]
    x, y = (torch.cat(columns) for columns in zip(*parts, strict=True))
    leaf = torch.full((1, 3), 0.25, requires_grad=True)
    step = DataParallelBackend(model, sgd, clip_norm)
    done = stepped(step, ((model(x + leaf) - y) ** 2).mean(), [leaf])
    assert leaf.grad is not None
    return done, model.weight.detach().clone(), leaf.grad


def test_no_gradient_outlives_the_step() -> None:
    """The next forward pass needs the memory."""
    model = network()
    step = DataParallelBackend(model, sgd, None)
    assert stepped(step, model(torch.ones(2, 3)).mean()).accepted
    assert model.weight.grad is None


def test_the_mean_is_over_all_samples_and_the_tail_counts() -> None:
    reference, weights, gradient = joined()
    answers = together(3, lambda workers: one(workers, []))
    for done, own, _ in answers:
        torch.testing.assert_close(own, weights)
        assert done.loss == pytest.approx(reference.loss)
        assert (done.accepted, done.stop) == (True, False)
    # The exchange divides rows by the number of workers, the shards add them.
    total = sum(g for _, _, g in answers if g is not None) / 3
    torch.testing.assert_close(total, gradient)


@pytest.mark.parametrize("dense", FORMATS[1:])
def test_the_mean_of_rounded_gradients_is_close_and_the_same_for_all(dense: str) -> None:
    reference, weights, _ = joined()
    answers = together(
        3, lambda workers: one(workers, [], clip_norm=1e3, stop=workers.rank == 2), dense=dense
    )
    moved = weights - network().weight
    for done, own, _ in answers:
        assert torch.equal(own, answers[0][1])
        assert 1e-5 < (own - weights).norm() / moved.norm() < 0.02
        assert done.loss == pytest.approx(reference.loss, rel=1e-6)
        assert (done.accepted, done.stop) == (True, True)


@pytest.mark.parametrize("dense", FORMATS)
def test_one_worker_that_is_not_finite_stops_the_step_of_all(dense: str) -> None:
    bad = float("nan")
    answers = together(
        3, lambda workers: one(workers, [], factor=bad if workers.rank == 1 else 1.0), dense=dense
    )
    for done, own, _ in answers:
        assert not done.accepted
        assert torch.equal(own, network().weight)


@pytest.mark.parametrize("dense", FORMATS)
@pytest.mark.parametrize(("gradient", "accepted"), [(1.49e38, True), (1.51e38, False)])
def test_finite_gradients_whose_sum_may_not_be_are_refused_by_all(
    gradient: float, accepted: bool, dense: str
) -> None:
    def step(workers: Workers) -> tuple[list[bool], list[float]]:
        model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(model.weight)
        dense = DataParallelBackend(model, lambda p: torch.optim.SGD(p, lr=1e-38), None, workers)
        signs = torch.tensor([1.0, -1.0])  # in float32 the gradients' sum is 0
        dense.backward((model.weight * gradient * signs).sum(), 1.0)
        step = dense.step([], 1.0)
        return [step.own, step.result().accepted], model.weight.flatten().tolist()

    for done, weights in together(2, step, dense=dense):
        assert done == [accepted, accepted]  # before gradients of rows are sent, too
        assert weights == pytest.approx(
            [-gradient * 1e-38, gradient * 1e-38] if accepted else [0, 0], rel=1e-2
        )


def test_the_wish_of_one_to_stop_reaches_all() -> None:
    answers = together(3, lambda workers: one(workers, [], stop=workers.rank == 2))
    assert [done.stop for done, _, _ in answers] == [True, True, True]
    assert all(done.accepted for done, _, _ in answers)


def test_clipping_bounds_the_step_of_all_alike() -> None:
    answers = together(3, lambda workers: one(workers, [], clip_norm=1e-3))
    moved = [(own - network().weight).norm().item() for _, own, _ in answers]
    assert moved[0] == moved[1] == moved[2]
    assert 0 < moved[0] < 1e-3
    rows = [g / 3 for _, _, g in answers if g is not None]
    # Both rows are the same one here; their squares count by themselves.
    norm = (moved[0] ** 2 + sum(float((g**2).sum()) for g in rows)) ** 0.5
    assert norm == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("norm", [1e-5, 1e-7, 0.0])
def test_clipping_is_that_of_pytorch(norm: float) -> None:
    """Also where norms are so small that what keeps it from dividing by zero counts."""
    moved = []
    for own in (True, False):
        model = network()
        nn.init.zeros_(model.weight)
        loss = (model.weight * norm * torch.tensor([0.6, 0.0, 0.8])).sum()
        if own:
            assert stepped(DataParallelBackend(model, sgd, 1e-6), loss).accepted
        else:
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
            sgd(list(model.parameters())).step()
        moved.append(model.weight.detach())
    torch.testing.assert_close(*moved, rtol=1e-5, atol=0)


def test_the_mean_is_over_copies_of_the_network_not_over_processes() -> None:
    def work(workers: Workers) -> Tensor:
        model = network()
        x, y = data(workers.data.rank, 4)  # two processes hold each copy, and read the same samples
        step = DataParallelBackend(model, sgd, None, workers)
        assert stepped(step, ((model(x) - y) ** 2).mean()).accepted
        return model.weight.detach()

    reference = network()
    x, y = (torch.cat(columns) for columns in zip(data(0, 4), data(1, 4), strict=True))
    stepped(DataParallelBackend(reference, sgd, None), ((reference(x) - y) ** 2).mean())
    for weight in together(4, work, copies=2):
        torch.testing.assert_close(weight, reference.weight.detach())


def test_a_parameter_that_no_worker_used_does_not_move() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.other, self.idle = (nn.Parameter(torch.ones(2)) for _ in range(3))

    def work(workers: Workers) -> list[Any]:
        model = Two()
        step = DataParallelBackend(
            model, lambda p: torch.optim.SGD(p, lr=1.0, weight_decay=0.25), None, workers
        )
        stepped(step, (model.used if workers.rank == 0 else model.other).sum())
        return [p.tolist() for p in model.parameters()]

    assert together(2, work) == [[[0.25, 0.25], [0.25, 0.25], [1.0, 1.0]]] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_gradients_are_added_in_32_bits(dtype: torch.dtype) -> None:
    """70,000 gradients of 1 add up to more than float16 can hold, and each of them is finite."""

    def step(workers: Workers, factor: float) -> tuple[StepResult, Tensor]:
        model = nn.Linear(70_000, 1, bias=False).to(dtype)
        nn.init.zeros_(model.weight)
        dense = DataParallelBackend(model, sgd, None, workers)
        loss = (model.weight.float() * factor).sum()
        return stepped(dense, loss), model.weight.detach().double()

    alone, _ = step(Workers(), 1.0)
    assert alone.accepted
    factors = (1.0, 2.0**-9)
    for done, weight in together(2, lambda workers: step(workers, factors[workers.rank])):
        assert done.accepted
        rate = sgd([nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"]
        mean = torch.tensor(sum(factors) / 2, dtype=torch.float64).to(dtype).double()
        torch.testing.assert_close(weight, (-rate * mean).expand_as(weight), rtol=2**-7, atol=0)


def test_a_network_of_another_shape_is_not_restored() -> None:
    narrow, wide = (DataParallelBackend(nn.Linear(3, width), None, None) for width in (1, 2))
    with pytest.raises(ConfigError, match="differs from the saved one") as caught:
        wide.restore(DenseState(narrow.part().weights))
    assert "bias: saved (1,), model (2,)" in str(caught.value.where)
    assert not torch.equal(wide.part().weights["weight"][:1], narrow.part().weights["weight"])


def test_a_part_of_a_network_is_restored_and_the_rest_stays() -> None:
    narrow, wide = (DataParallelBackend(nn.Linear(3, width), sgd, None) for width in (1, 2))
    before = wide.part().weights["weight"].clone()
    state = {
        "state": {0: {"momentum_buffer": torch.ones(2, 3)}},
        "param_groups": [{"lr": 9.0, "params": [0]}],
    }
    bias = torch.tensor([5.0, 6.0])
    wide.restore(DenseState({"bias": bias}, state, partial=True))
    torch.testing.assert_close(wide.part().weights["bias"], bias, rtol=0, atol=0)
    torch.testing.assert_close(wide.part().weights["weight"], before, rtol=0, atol=0)
    rates = [[g["lr"] for g in one.part().optimizer["param_groups"]] for one in (narrow, wide)]
    assert rates[0] == rates[1], "the optimizer keeps its settings"
    assert set(wide.part().optimizer["state"][0]) == {"momentum_buffer"}
