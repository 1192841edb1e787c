"""Training with rows on a device is training with rows in RAM, to the bit, and goes on there or here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap.store import Eviction, Shard, distinct, pool, pool_backward
from satrap.store.arrays import FeatureIds
from satrap.train import Checkpointing
from tests.store.gpu.equal_runs import FIT, check_same
from tests.support.exact_runs import (
    everything,
    killed_and_resumed,
    make_trainer,
    train_data,
    undisturbed,
)
from tests.support.interruptions import KillAt, KilledError

pytestmark = pytest.mark.triton

MEMORY: dict[str, Any] = {"memory": 1 << 20}
WAYS: list[dict[str, Any]] = [
    {"mode": "sync", "staleness": 0},
    {"mode": "hybrid", "staleness": 2},
    {"mode": "sync", "staleness": 0, "clip_norm": 0.1},
    {"mode": "sync", "staleness": 0, "lookahead": 2},
    {"mode": "hybrid", "staleness": 2, "embedding_dtype": "bfloat16"},
    {"mode": "hybrid", "staleness": 2, "admission": satrap.store.Admission(min_count=2, memory=1 << 16)},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_training_is_that_of_rows_in_ram(way: dict[str, Any]) -> None:
    expected = undisturbed(FIT, **way, **MEMORY)
    check_same(expected, undisturbed(FIT, **way, **MEMORY, rows_on="cuda"))


@pytest.mark.parametrize("way", WAYS[:2], ids=str)
@pytest.mark.parametrize("delta", [None, 2])
def test_resumed_equals_undisturbed(way: dict[str, Any], delta: int | None, tmp_path: Path) -> None:
    arguments = {**way, **MEMORY, "rows_on": "cuda"}
    every = 4 if delta is None else 8
    check_same(
        undisturbed(FIT, **arguments), killed_and_resumed(tmp_path, every, 10, FIT, delta, **arguments)
    )


@pytest.mark.parametrize("way", WAYS[:2], ids=str)
@pytest.mark.parametrize(("first", "then"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_run_moves(way: dict[str, Any], first: str, then: str, tmp_path: Path) -> None:
    plan = Checkpointing(str(tmp_path), every_steps=4)
    trainer = make_trainer(**way, **MEMORY, rows_on=first)
    with pytest.raises(KilledError):
        trainer.fit(train_data(), **FIT, checkpoint=plan, observers=[KillAt(10)])
    trainer.close()
    trainer = make_trainer(**way, **MEMORY, rows_on=then)
    result = trainer.fit(train_data(), **FIT, checkpoint=plan, resume=True)
    left = everything(trainer, result)
    trainer.close()
    if way["mode"] == "sync":
        check_same(undisturbed(FIT, **way, **MEMORY), left)


def device_shard(**options: Any) -> Shard:
    table = satrap.Table("a", dim=8, optimizer=satrap.optim.SGD(lr=1.0))
    return Shard([table], device="cuda", **{"memory": 1 << 20} | options)


@pytest.mark.parametrize("count", [0, 5])
def test_features_that_are_not_pooled_may_be_alone_or_empty(count: int) -> None:
    shard, ids = device_shard(), np.array([7, 7, 9, 2**64 - 1, 7], np.uint64)[:count]
    features = [FeatureIds(0, count, None, None, "none")]
    prepared = shard.prepare_batch(0, ids, np.array([0, count]))
    batch = shard.look_up_batch(0, prepared, 3, features, create=True)
    rows = batch.rows
    assert rows.shape == (count, 8)
    before = rows.clone()
    shard.update_batch(0, batch, torch.ones_like(rows))
    after, _ = shard.peek("a", ids)
    times = np.array([3, 3, 1, 1, 3], np.float32)[:count, None]
    np.testing.assert_allclose(np.asarray(after), before.numpy() - times, rtol=1e-6)
    shard.close()


def test_an_empty_batch_of_pooled_features() -> None:
    shard = device_shard()
    prepared = shard.prepare_batch(0, np.empty(0, np.uint64), np.array([0, 0]))
    features = [FeatureIds(0, 0, None, None, "sum"), FeatureIds(0, 0, np.zeros(1, np.int64), None, "mean")]
    batch = shard.look_up_batch(0, prepared, 0, features, create=True)
    assert batch.rows.shape == (0, 8)
    shard.update_batch(0, batch, torch.empty(0, 8))
    assert shard.statistics().rows == 0
    shard.close()


Kind = tuple[str, bool, bool]
"""Pooling mode of a feature, whether samples have several ids, and whether ids have weights."""
KINDS: list[list[Kind]] = [
    [("mean", True, True)],
    [("sum", True, False)],
    [("max", False, False)],
    [("max", True, False)],
    [("max", False, False), ("sqrtn", True, True), ("sum", False, False)],
    [("sum", False, False), ("sum", False, True), ("mean", True, False)],
]


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_features_of_all_kinds_are_pooled_and_stepped_as_on_the_host(kinds: list[Kind]) -> None:
    size, rng = 6, np.random.default_rng(0)
    features, ids, at = list[FeatureIds](), [], 0
    for mode, several, weighted in kinds:
        counts = rng.integers(0, 4, size) if several else np.ones(size, np.int64)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        end = at + int(offsets[-1])
        weights = rng.random(end - at).astype(np.float32) + 0.1 if weighted else None
        features.append(FeatureIds(at, end, offsets if several else None, weights, mode))  # type: ignore[arg-type]
        ids.append(rng.integers(0, 9, end - at).astype(np.uint64))
        at = end
    every, splits = np.concatenate(ids), np.array([0, at])
    there = device_shard()
    here = Shard([satrap.Table("a", dim=8, optimizer=satrap.optim.SGD(lr=1.0))])
    unique, bounds, inverse = distinct(every, splits)
    rows = here.lookup_group(0, unique, bounds)
    gradients = rng.standard_normal((size, len(kinds), 8)).astype(np.float32)
    block, total = np.empty_like(gradients), np.zeros_like(rows)
    for i, f in enumerate(features):
        own = inverse[f.start : f.stop]
        offsets = np.arange(size + 1) if f.offsets is None else f.offsets
        block[:, i], chosen = pool(rows, own, offsets, mode=f.mode, weights=f.weights)  # type: ignore[arg-type]
        pool_backward(
            np.ascontiguousarray(gradients[:, i]),
            own,
            offsets,
            len(rows),
            mode=f.mode,  # type: ignore[arg-type]
            weights=f.weights,
            argmax=chosen,
            into=total,
        )
    here.update_group(0, unique, bounds, total)
    batch = there.look_up_batch(0, there.prepare_batch(0, every, splits), size, features, create=True)
    np.testing.assert_allclose(batch.rows.view(gradients.shape).numpy(), block, rtol=1e-6, atol=1e-7)
    there.update_batch(0, batch, torch.from_numpy(gradients.reshape(-1, 8)))
    after, _ = there.peek("a", unique)
    np.testing.assert_allclose(np.asarray(after), here.peek("a", unique)[0], rtol=1e-5, atol=1e-6)
    there.close()
    here.close()


@pytest.mark.parametrize("eviction", [Eviction(), Eviction("ttl", ttl=3)], ids=["lru", "ttl"])
def test_a_record_of_changes_names_every_row_that_left(eviction: Eviction) -> None:
    """The rows of each moment follow from the first ones and the deltas."""
    shard, rng = device_shard(eviction=eviction, memory=60 * (32 + 24)), np.random.default_rng(0)
    known: set[int] = set()
    shard.changes.take().chunks.close()
    features = [FeatureIds(0, 40, None, None, "sum")]
    for turn in range(8):
        ids = rng.integers(20 * turn, 20 * turn + 60, 40).astype(np.uint64)
        batch = shard.look_up_batch(
            0, shard.prepare_batch(0, ids, np.array([0, 40])), 40, features, create=True
        )
        shard.update_batch(0, batch, torch.ones_like(batch.rows))
        delta = shard.changes.take()
        assert not delta.full
        known -= set(delta.deleted.get("a", np.empty(0, np.uint64)).tolist())
        known |= {int(key) for chunk in delta.chunks for key in chunk.ids}
        assert known == {int(key) for chunk in shard.export("a") for key in chunk.ids}
    assert shard.statistics().tables["a"].evicted
    shard.close()
