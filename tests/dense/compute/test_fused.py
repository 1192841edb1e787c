"""Steps that a device leaves out by itself, against those that the host leaves out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from satrap.dense import DataParallelBackend, DenseState
from satrap.dense.compute.fused import WAYS, can_leave_out, fuse, keep_impl_flags, uses_default_impl

Make = Callable[..., torch.optim.Optimizer]

MAKES = [
    pytest.param(torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True}, id="adam"),
    pytest.param(torch.optim.AdamW, {}, id="adamw"),
    pytest.param(torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, id="sgd"),
    pytest.param(torch.optim.SGD, {}, id="sgd without momentum"),
]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))


class Run:
    """Trains a network on given batches, with rows added to its inputs."""

    def __init__(self, make: Make, clip_norm: float | None, precision: str, **arguments: Any) -> None:
        self.model = network()
        self.dense = DataParallelBackend(
            self.model,
            lambda parameters: make(parameters, lr=0.05, **arguments),
            clip_norm,
            precision=precision,
        )
        self.heard: list[bool] = []

    def step(self, number: int, factor: float, *, bad_rows: bool = False) -> tuple[Any, Tensor]:
        """Take a step; `factor` is on the loss, and the gradients of rows alone may be bad."""
        x = torch.randn(6, 5, generator=torch.Generator().manual_seed(number))
        rows = torch.full((6, 5), 0.25, requires_grad=True)
        loss = self.model(x + rows).square().mean() * factor
        if bad_rows:
            rows.register_hook(lambda gradient: gradient * float("nan"))
        self.dense.backward(loss, 1.0)
        step = self.dense.step([rows], 0.5 + number / 10)
        self.heard.append(step.own)
        assert rows.grad is not None
        return step.result(), rows.grad

    def state(self) -> list[Tensor]:
        """Weights and the optimizer's state."""
        part = self.dense.part()
        kept = [value for entry in part.optimizer["state"].values() for value in entry.values()]
        return [t.clone() for t in [*part.weights.values(), *(v for v in kept if isinstance(v, Tensor))]]


@pytest.mark.parametrize(("make", "arguments"), MAKES)
@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_training_is_that_of_the_host_that_looks_first(
    make: Make, arguments: dict[str, Any], clip_norm: float | None, precision: str
) -> None:
    one, other = (Run(make, clip_norm, precision, **arguments, fused=fused) for fused in (True, False))
    for number, factor in enumerate([1.0, 1.0, float("nan"), 1.0, float("inf"), 1e36, 1.0]):
        (mine, my_rows), (theirs, their_rows) = (run.step(number, factor) for run in (one, other))
        near = {"rtol": 1e-4, "atol": 1e-5} if number >= 5 else {}  # then sums of huge weights cancel
        assert (mine.accepted, mine.rescaled) == (theirs.accepted, theirs.rescaled)
        if theirs.accepted:
            assert mine.loss == pytest.approx(theirs.loss)
            torch.testing.assert_close(my_rows, their_rows, **near)
        torch.testing.assert_close(one.state(), other.state(), **near)
    assert one.heard == other.heard
    assert can_leave_out(one.dense.optimizer)
    assert not can_leave_out(other.dense.optimizer)


@pytest.mark.parametrize(("make", "arguments"), MAKES)
def test_a_refused_step_changes_nothing(make: Make, arguments: dict[str, Any]) -> None:
    """Neither the first, which has no state yet, nor a later one; nor if the rows alone were bad."""
    run = Run(make, None, "float32", **arguments, fused=True)
    before = [t.clone() for t in run.model.parameters()]
    assert not run.step(0, float("nan"))[0].accepted
    torch.testing.assert_close(list(run.model.parameters()), before, rtol=0, atol=0)
    for number in range(3):
        assert run.step(number, 1.0)[0].accepted
    kept = run.state()
    assert not run.step(3, float("inf"))[0].accepted
    assert not run.step(4, 1.0, bad_rows=True)[0].accepted
    torch.testing.assert_close(run.state(), kept, rtol=0, atol=0)


def test_an_optimizer_whose_maker_has_chosen_is_left_alone() -> None:
    parameters = [nn.Parameter(torch.ones(2))]
    for chosen in ({}, {"fused": True}, {"fused": False}, {"foreach": True}, {"capturable": True}):
        [group] = torch.optim.Adam(parameters, **chosen).param_groups
        assert uses_default_impl(group) == (not chosen)
    assert not uses_default_impl(torch.optim.Adam(parameters, lr=torch.tensor(0.1)).param_groups[0])
    assert not uses_default_impl(torch.optim.RMSprop(parameters).param_groups[0])


def test_parameters_on_several_devices_are_looked_at_by_the_host() -> None:
    here, there = (nn.Parameter(torch.ones(2, device=device)) for device in ("cpu", "meta"))
    assert can_leave_out(torch.optim.SGD([here], fused=True))
    both = torch.optim.SGD([here])
    both.add_param_group({"params": [there], "fused": True})
    both.param_groups[0]["fused"] = True
    assert not can_leave_out(both)


def test_on_the_cpu_an_optimizer_computes_as_it_was_made() -> None:
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))])
    fuse(optimizer)
    assert optimizer.param_groups[0]["fused"] is None


def test_a_saved_optimizer_computes_as_that_which_takes_it_over() -> None:
    """A run on a device saves other ways than one on the CPU, which may not have them."""
    saving, own = (Run(torch.optim.Adam, None, "float32", fused=fused) for fused in (True, None))
    for number in range(3):
        saving.step(number, 1.0)
    part = copy.deepcopy(saving.dense.part())
    own.dense.restore(DenseState(part.weights, part.optimizer))
    assert own.dense.optimizer is not None
    assert own.dense.optimizer.param_groups[0]["fused"] is None
    torch.testing.assert_close(own.state(), saving.state(), rtol=0, atol=0)


def test_other_settings_are_those_saved() -> None:
    saved = [{"lr": 0.1, "betas": (0.8, 0.9), "fused": True, "params": [0]}]
    own: list[dict[str, Any]] = [{"lr": 0.5, "betas": (0.9, 0.99), "fused": None, "foreach": None}]
    [found] = keep_impl_flags(saved, own)
    assert found == {"lr": 0.1, "betas": (0.8, 0.9), "fused": None, "foreach": None, "params": [0]}
    assert set(found) & set(WAYS) == {"fused", "foreach"}
    assert keep_impl_flags(saved, own * 2) == saved
