"""Training through embedding workers is training without them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap.batch import Batch
from satrap.checkpoint import Series
from satrap.dense import Workers
from satrap.errors import ConfigError, StoreError
from satrap.exchange.servers import Wire
from satrap.schema import Categorical, Schema
from satrap.train import Checkpointing, Observer, Progress
from tests.dense.threads import together
from tests.embedding.workers import tier

STEPS = 8


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(("mode", "staleness"), [("sync", 0), ("hybrid", 3), ("async", 2)])
def test_one_worker_trains_the_same_model(mode: str, staleness: int, shards: int) -> None:
    data = tier.Listed(tier.batches(STEPS))
    with tier.servers(shards, 0) as (addresses, _), tier.servers(shards, 1) as (others, middle):
        alone = tier.trainer(addresses, mode=mode, staleness=staleness)
        through = tier.trainer(others, middle, mode=mode, staleness=staleness)
        a, b = (t.fit(data, validation=tier.Listed(data.found[:2]), epochs=2) for t in (alone, through))
        assert tier.difference(alone, through) < 1e-6
        assert a.metrics == pytest.approx(b.metrics, abs=1e-6)
        assert through.run.progress.distinct_ratio == alone.run.progress.distinct_ratio
        mine = through.exchange.telemetry.traffic().own
        assert mine == alone.exchange.telemetry.traffic().own
        assert set(mine) == set(range(staleness + 1))
        assert middle[0].handler.statistics().workers == 1
        alone.close()
        through.close()
        assert middle[0].handler.statistics().workers == 0
        assert middle[0].handler.statistics().samples == 16 * (STEPS + 2) * 2


def test_features_with_one_id_each_give_the_same_bytes() -> None:
    schema = Schema(labels=["clicked"], features={n: Categorical(dim=4) for n in ("user", "item")})

    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = torch.nn.Linear(8, 1)

        def forward(self, batch: Any) -> torch.Tensor:
            return self.out(batch.flat())

    found = [
        Batch(b.size, {n: b.ids[n] for n in schema.categorical}, labels=b.labels, position=b.position)
        for b in tier.batches(STEPS)
    ]
    with tier.servers(2, 0) as (addresses, _), tier.servers(2, 1) as (others, middle):
        runs = []
        for shards, between in ((addresses, []), (others, middle)):
            torch.manual_seed(1)
            trained = tier.trainer(shards, between, mode="hybrid", staleness=2, schema=schema, model=Sum())
            trained.fit(tier.Listed(found))
            runs.append(trained)
        assert tier.difference(*runs) == 0
        for trained in runs:
            trained.close()


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("mode", "tiers"),
    [("sync", 1), ("sync", 2), pytest.param("hybrid", 1, marks=pytest.mark.slow), ("hybrid", 2)],
)
def test_two_workers_train_the_same_model(mode: str, tiers: int) -> None:
    """In hybrid the updates of others arrive when they do: then the same ids have rows."""
    found = tier.batches(5)
    shares = [found[::2], found[1::2]]  # one has a batch more

    def train(addresses: Any, middle: Any) -> satrap.Trainer:
        def work(workers: Workers) -> satrap.Trainer:
            for rank in range(workers.size):  # one after the other: the seed is the process's
                if workers.rank == rank:
                    own = tier.trainer(addresses, middle, mode=mode, staleness=0, workers=workers)
                workers.meet("built")
            own.fit(tier.Listed(shares[workers.rank]), epochs=2)
            return own

        first, second = together(2, work)
        second.close()
        return first

    with tier.servers(2, 0) as (addresses, _), tier.servers(2, tiers) as (others, middle):
        alone, through = train(addresses, []), train(others, middle)
        if mode == "sync":
            assert tier.difference(alone, through) < 1e-6
        else:
            mine, theirs = tier.tables(alone), tier.tables(through)
            assert {t: sorted(rows) for t, rows in mine.items()} == {
                t: sorted(rows) for t, rows in theirs.items()
            }
        alone.close()
        through.close()


# In int8 a small gradient may become 0, and Adagrad's first steps are as long as the rate.
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("wire", "far"), [(Wire(), 0.02), (Wire("float16", "float16"), 0.02), (Wire("int8", "int8"), 0.4)]
)
def test_with_short_numbers_on_the_wire_the_model_is_close(wire: Wire, far: float) -> None:
    data = tier.Listed(tier.batches(STEPS))
    with tier.servers(1, 0) as (addresses, _), tier.servers(1, 1) as (others, middle):
        alone, through = tier.trainer(addresses), tier.trainer(others, middle, wire=wire)
        alone.fit(data)
        through.fit(data)
        assert 0 < tier.difference(alone, through) < far
        alone.close()
        through.close()


class EndError(Exception):
    """A run ends as if its process had died."""


class End(Observer):
    """Ends it after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def step(self, progress: Progress) -> None:
        if progress.step == self._step:
            raise EndError


Left = tuple[dict[str, dict[int, np.ndarray]], list[torch.Tensor]]
"""Rows by table and id, and the weights of the network."""


def ran(part: str, plan: Checkpointing | None = None, steps: int | None = None, resume: bool = False) -> Left:
    """Train, through an embedding worker or not; return what is left, maybe after so many steps."""
    with tier.servers(1, 1) as (addresses, middle):
        one = tier.trainer(addresses, middle if part == "through" else [], mode="hybrid", staleness=3)
        with suppress(EndError):
            observers = [End(steps)] if steps else []
            one.fit(tier.Listed(tier.batches(STEPS)), checkpoint=plan, resume=resume, observers=observers)
        left = tier.tables(one), [p.detach().clone() for p in one.model.parameters()]
        one.close()
        return left


@pytest.fixture(scope="module")
def undisturbed() -> Left:
    return ran("alone")


@pytest.mark.cluster
@pytest.mark.parametrize("order", ["through then alone", "alone then through", "through then through"])
def test_a_run_resumes_with_or_without_embedding_workers(
    tmp_path: Path, order: str, undisturbed: Left
) -> None:
    """The lookups in flight at the snapshot, max pooling too, find the rows they had found."""
    plan = Checkpointing(str(tmp_path / "snapshots"), every_steps=5, keep=9)
    first, second = order.split(" then ")
    ran(first, plan, 7)
    assert Series(plan.url).steps() == [5]
    (rows, weights), (again, others) = undisturbed, ran(second, plan, resume=True)
    assert {t: sorted(r) for t, r in rows.items()} == {t: sorted(r) for t, r in again.items()}
    for table, found in rows.items():
        for number, row in found.items():
            np.testing.assert_allclose(again[table][number], row, atol=1e-6)
    for a, b in zip(weights, others, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_gradients_that_are_not_finite_are_refused_whole() -> None:
    [batch] = tier.batches(1)
    with tier.servers(2, 1) as (addresses, middle):
        one = tier.trainer(addresses, middle)
        ticket = one.predictor.plan.ticket(batch)
        lookup = one.exchange.lookup(ticket.requests, create=True)
        answers = lookup.result()
        before = tier.tables(one)
        gradients = [np.ones_like(a) for a in answers]
        gradients[-1][0, 0] = np.nan
        one.exchange.apply(lookup, gradients, lr_scale=1.0)
        with pytest.raises(StoreError, match="NaN or infinite"):
            one.exchange.flush()
        with pytest.raises(StoreError, match="NaN or infinite"):
            one.exchange.apply(lookup, gradients, lr_scale=1.0)
        after = tier.tables(one, one.exchange.shards)  # type: ignore[attr-defined]
        assert {t: {i: r.tolist() for i, r in f.items()} for t, f in before.items()} == {
            t: {i: r.tolist() for i, r in f.items()} for t, f in after.items()
        }
        one.close()


def test_clip_norm_is_refused() -> None:
    with tier.servers(1, 1) as (addresses, middle), pytest.raises(ConfigError, match="clip_norm"):
        tier.trainer(addresses, middle, clip_norm=1.0)
