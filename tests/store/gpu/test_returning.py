"""Rows that do not fit a device's budget live in host memory, and training does not show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap.errors import ConfigError, StoreError
from satrap.store import Eviction, Shard, Tier
from satrap.store.arrays import FeatureIds
from tests.store.gpu.equal_runs import FIT, check_same
from tests.support.exact_runs import killed_and_resumed, undisturbed

pytestmark = pytest.mark.triton

ROW = 32 + 32 + 24
"""Bytes on a device of a row of `exact_runs`: weights, sums of Adagrad, index."""
HALF: dict[str, Any] = {
    "memory": 50 * ROW,
    "eviction": Eviction("lru"),
    "tier": Tier("memory", 1 << 20),
    "rows_on": "cuda",
}
"""The run has 100 rows."""
WAYS: list[dict[str, Any]] = [
    {"mode": "sync", "staleness": 0},
    {
        "mode": "sync",
        "staleness": 0,
        "embedding_dtype": "bfloat16",
        "embedding_optimizer": satrap.optim.Adam(lr=0.1),
    },
    {"mode": "hybrid", "staleness": 2},
    {"mode": "sync", "staleness": 0, "clip_norm": 0.1},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_training_with_half_of_the_rows_on_the_device_is_that_with_all_rows_in_ram(
    way: dict[str, Any],
) -> None:
    check_same(undisturbed(FIT, **way), undisturbed(FIT, **way, **HALF))


def test_resumed_equals_undisturbed(tmp_path: Path) -> None:
    way = WAYS[0]
    check_same(undisturbed(FIT, **way), killed_and_resumed(tmp_path, 4, 10, FIT, 2, **way, **HALF))


def shards(device_rows: int, **options: Any) -> tuple[Shard, Shard]:
    """Shards with one table: some rows on a device and the others in host memory, and all in RAM."""
    tables = [satrap.Table("a", dim=8, optimizer=satrap.optim.SGD(lr=1.0))]
    there = {
        "device": "cuda",
        "memory": device_rows * 56,
        "eviction": Eviction(),
        "tier": Tier("memory", 1 << 16),
    }
    return Shard(tables, **there | options), Shard(tables)


def step(there: Shard, here: Shard, ids: np.ndarray, *, ahead: bool = False) -> None:
    """One step of the same batch in both, from equal rows."""
    splits, features = np.array([0, len(ids)]), [FeatureIds(0, len(ids), None, None, "sum")]
    if ahead:
        there.ahead.prefetch(0, ids, splits)
        there.ahead.settle()
    batch = there.look_up_batch(0, there.prepare_batch(0, ids, splits), len(ids), features, create=True)
    np.testing.assert_array_equal(batch.rows.numpy(), here.lookup("a", ids))
    gradients = np.random.default_rng(len(ids)).standard_normal((len(ids), 8)).astype(np.float32)
    there.check_batch(0, batch)
    there.update_batch(0, batch, torch.from_numpy(gradients))
    here.update("a", ids, gradients)


def test_rows_known_ahead_are_there_before_their_step() -> None:
    there, here = shards(60)
    rng = np.random.default_rng(0)
    for turn in range(6):
        step(there, here, rng.integers(20 * turn, 20 * turn + 30, 20).astype(np.uint64))
    old = np.arange(20, dtype=np.uint64)
    before = there.statistics().tier
    step(there, here, old, ahead=True)
    after = there.statistics().tier
    assert before is not None
    assert after is not None
    assert after.prefetched - before.prefetched == after.prefetch_hits - before.prefetch_hits > 0
    assert after.reads - before.reads == after.prefetched - before.prefetched  # the lookup read no more
    for mine, wanted in zip(there.export("a"), here.export("a"), strict=True):
        np.testing.assert_array_equal(mine.ids, wanted.ids)
        np.testing.assert_array_equal(mine.weights, wanted.weights)
    for shard in (there, here):
        shard.close()


def test_reading_creates_nothing_and_finds_rows_in_host_memory() -> None:
    there, here = shards(60)
    for turn in range(3):
        step(there, here, np.arange(40 * turn, 40 * turn + 40, dtype=np.uint64))
    ids = np.arange(10, 150, 10, dtype=np.uint64)
    features = [FeatureIds(0, len(ids), None, None, "sum")]
    prepared = there.prepare_batch(0, ids, np.array([0, len(ids)]))
    batch = there.look_up_batch(0, prepared, len(ids), features, create=False)
    rows, found = here.peek("a", ids)
    np.testing.assert_array_equal(batch.rows.numpy(), rows)
    assert batch.unseen().tolist() == [(~found).sum()] == [3]
    assert there.statistics().rows == 120
    for shard in (there, here):
        shard.close()


def test_a_batch_that_does_not_fit_is_refused_whole() -> None:
    there, here = shards(20)
    for turn in range(3):
        step(there, here, np.arange(8 * turn, 8 * turn + 8, dtype=np.uint64))
    before = [chunk.weights for chunk in there.export("a")]
    ids = np.arange(24, dtype=np.uint64)
    features = [FeatureIds(0, len(ids), None, None, "sum")]
    with pytest.raises(StoreError, match="rows of a batch must be on the device together"):
        there.look_up_batch(
            0, there.prepare_batch(0, ids, np.array([0, 24])), len(ids), features, create=True
        )
    np.testing.assert_array_equal(
        np.concatenate(before), np.concatenate([c.weights for c in there.export("a")])
    )
    for shard in (there, here):
        shard.close()


def test_host_memory_is_only_behind_a_device_and_not_more_than_there_is() -> None:
    with pytest.raises(ConfigError, match="a tier in host memory needs rows on a GPU"):
        shards(20, device="cpu", memory=1 << 20)
    with pytest.raises(ConfigError, match="does not fit in this machine's"):
        shards(20, tier=Tier("memory", 1 << 60))
