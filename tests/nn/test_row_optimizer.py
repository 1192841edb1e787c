"""The rows of a loop of the user's own, beside `torch.nn.EmbeddingBag` with `torch.optim`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import satrap
from satrap.errors import ConfigError, StoreError
from satrap.nn import EmbeddingCollection, RowOptimizer
from satrap.optim import SGD, Adagrad, Adam, Optimizer
from satrap.store import Admission, StoreConfig
from tests.nn.loops import IDS, MODES, Bags, Network, batch, collection, loss_of, same_rows, table


class Pair:
    """A collection, plain tables with equal rows, their optimizers, and one network for each."""

    def __init__(self, rows: Optimizer, plain: Callable[..., Any]) -> None:
        torch.manual_seed(0)
        self.embeddings = collection(optimizer=rows)
        self.optimizer = RowOptimizer(self.embeddings)
        self.bags = Bags(self.embeddings)
        self.plain = plain(self.bags.parameters())
        self.networks = Network(), Network()
        self.networks[1].load_state_dict(self.networks[0].state_dict())

    def backward(self, columns: Any) -> None:
        """Compute the gradients of one batch with both."""
        for embed, network in zip((self.embeddings, self.bags), self.networks, strict=True):
            loss_of(network(embed(columns)), columns).backward()

    def step(self) -> None:
        for optimizer in (self.optimizer, self.plain):
            optimizer.step()
            optimizer.zero_grad()


@pytest.fixture
def sgd() -> Iterator[Pair]:
    pair = Pair(SGD(lr=0.5), lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    yield pair
    pair.embeddings.close()


@pytest.mark.parametrize(
    ("rows", "plain"),
    [
        (SGD(lr=0.5), lambda parameters: torch.optim.SGD(parameters, lr=0.5)),
        (Adagrad(lr=0.1), lambda parameters: torch.optim.Adagrad(parameters, lr=0.1)),
    ],
)
def test_steps_equal_torch_optim(rows: Optimizer, plain: Any) -> None:
    pair = Pair(rows, plain)
    for seed in range(8):
        pair.backward(batch(seed))
        pair.step()
    same_rows(pair.embeddings, pair.bags)
    assert pair.embeddings.steps == 8
    pair.embeddings.close()


def test_steps_equal_sparse_adam() -> None:
    """Every batch has every id: steps of a row and steps of the optimizer are then the same number."""
    embeddings = EmbeddingCollection({"user": satrap.Categorical(dim=4)}, optimizer=Adam(lr=0.01))
    ids = torch.arange(IDS)
    with torch.no_grad():
        bag = nn.Embedding.from_pretrained(
            embeddings({"user": ids})["user"].clone(), freeze=False, sparse=True
        )
    optimizers = RowOptimizer(embeddings), torch.optim.SparseAdam(bag.parameters(), lr=0.01)
    for seed in range(6):
        ids = torch.from_numpy(np.random.default_rng(seed).permutation(np.tile(np.arange(IDS), 2)))
        target = torch.from_numpy(np.random.default_rng(seed).standard_normal((2 * IDS, 4))).float()
        for vectors in (embeddings({"user": ids})["user"], bag(ids)):
            (vectors - target).pow(2).sum().backward()  # so large that eps does not count
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    rows = embeddings.eval()({"user": torch.arange(IDS)})["user"]
    torch.testing.assert_close(rows, bag.weight.detach(), rtol=0, atol=1e-6)
    embeddings.close()


def test_gradients_of_several_batches_are_one_step() -> None:
    pair = Pair(Adagrad(lr=0.1), lambda parameters: torch.optim.Adagrad(parameters, lr=0.1))
    for seed in range(0, 9, 3):
        for microbatch in range(3):
            pair.backward(batch(seed + microbatch))
        pair.step()
    same_rows(pair.embeddings, pair.bags)
    assert pair.embeddings.steps == 3
    pair.embeddings.close()


def test_a_step_with_several_batches_does_not_use_rows() -> None:
    """An id gets its row in the third forward pass, as if each batch had its own step."""
    embeddings = EmbeddingCollection(
        {"user": satrap.Categorical(dim=4)}, store=StoreConfig(admission=Admission(min_count=3))
    )
    optimizer, trained = RowOptimizer(embeddings), []
    for _ in range(3):
        for user in (1, 2):
            embeddings({"user": [user]})["user"].sum().backward()  # type: ignore[union-attr]
        before = embeddings.eval()({"user": [1]})["user"]
        optimizer.step()
        trained.append(not torch.equal(embeddings({"user": [1]})["user"], before))  # type: ignore[arg-type]
        embeddings.train()
    assert trained == [False, False, True]
    embeddings.close()


def test_several_lookups_before_one_backward_pass(sgd: Pair) -> None:
    first, second = batch(1), batch(2)
    for embed, network in zip((sgd.embeddings, sgd.bags), sgd.networks, strict=True):
        logits = network(embed(first)) * network(embed(second))
        loss_of(logits, first).backward()
    sgd.step()
    same_rows(sgd.embeddings, sgd.bags)


def test_two_backward_passes_of_one_forward_pass_add_up(sgd: Pair) -> None:
    columns = batch(1)
    for embed, network in zip((sgd.embeddings, sgd.bags), sgd.networks, strict=True):
        loss = loss_of(network(embed(columns)), columns)
        loss.backward(retain_graph=True)
        loss.backward()
    sgd.step()
    same_rows(sgd.embeddings, sgd.bags)


def test_a_backward_pass_after_the_step_counts_for_the_next_one(sgd: Pair) -> None:
    columns, losses = batch(1), []
    for embed, network in zip((sgd.embeddings, sgd.bags), sgd.networks, strict=True):
        losses.append(loss_of(network(embed(columns)), columns))
    for _ in range(2):
        for loss in losses:
            loss.backward(retain_graph=True)
        sgd.step()
    same_rows(sgd.embeddings, sgd.bags)
    assert sgd.embeddings.steps == 2


def test_zero_grad_between_forward_and_backward_loses_nothing(sgd: Pair) -> None:
    columns = batch(1)
    for embed, network, optimizer in zip(
        (sgd.embeddings, sgd.bags), sgd.networks, (sgd.optimizer, sgd.plain), strict=True
    ):
        loss_of(network(embed(batch(2))), batch(2)).backward()  # its gradients are forgotten
        loss = loss_of(network(embed(columns)), columns)
        optimizer.zero_grad()
        loss.backward()
    sgd.step()
    same_rows(sgd.embeddings, sgd.bags)


def test_a_forward_pass_without_a_backward_pass_changes_nothing(sgd: Pair) -> None:
    for seed in range(3):
        sgd.networks[0](sgd.embeddings(batch(seed)))
    sgd.optimizer.step()
    same_rows(sgd.embeddings, sgd.bags, tolerance=0)
    assert sgd.embeddings.steps == 0


def test_a_second_step_has_no_gradients_left(sgd: Pair) -> None:
    sgd.backward(batch(1))
    sgd.step()
    sgd.optimizer.step()
    same_rows(sgd.embeddings, sgd.bags)
    assert sgd.embeddings.steps == 1


def test_gradients_of_parameters_alone_reach_no_row(sgd: Pair) -> None:
    columns, network = batch(1), sgd.networks[0]
    torch.autograd.grad(loss_of(network(sgd.embeddings(columns)), columns), list(network.parameters()))
    sgd.optimizer.step()
    same_rows(sgd.embeddings, sgd.bags, tolerance=0)


def test_a_scheduler_of_torch_sets_the_rate(sgd: Pair) -> None:
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (0.0, 1.0, 0.5, 0.25)[min(step, 3)])
        for optimizer in (sgd.optimizer, sgd.plain)
    ]
    for seed in range(4):
        sgd.backward(batch(seed))
        sgd.step()
        for scheduler in schedulers:
            scheduler.step()
    same_rows(sgd.embeddings, sgd.bags)
    saved = sgd.optimizer.state_dict()
    again = RowOptimizer(sgd.embeddings)
    again.load_state_dict(saved)
    assert again.param_groups[0]["lr"] == sgd.plain.param_groups[0]["lr"]


def test_a_closure_is_called(sgd: Pair) -> None:
    columns = batch(1)

    def again() -> Any:
        loss = loss_of(sgd.networks[0](sgd.embeddings(columns)), columns)
        loss.backward()
        return loss

    assert sgd.optimizer.step(again) is not None
    assert sgd.embeddings.steps == 1


def test_a_rate_below_zero_is_refused(sgd: Pair) -> None:
    sgd.optimizer.param_groups[0]["lr"] = -0.1
    with pytest.raises(ConfigError, match="learning rate of the rows must be >= 0"):
        sgd.optimizer.step()


def test_a_copy_is_refused(sgd: Pair) -> None:
    with pytest.raises(ConfigError, match="EmbeddingCollection cannot be copied or pickled"):
        copy.deepcopy(sgd.optimizer)


def test_gradients_that_are_not_finite_are_an_error_and_change_no_row(sgd: Pair) -> None:
    before = table(sgd.embeddings)
    vectors = sgd.embeddings(batch(1))
    (vectors["user"].sum() * float("nan")).backward()  # type: ignore[union-attr]
    sgd.optimizer.step()
    with pytest.raises(StoreError, match="NaN or infinite"):
        sgd.embeddings.save("/nowhere")
    for name in MODES:
        assert torch.equal(table(sgd.embeddings)[name], before[name])
