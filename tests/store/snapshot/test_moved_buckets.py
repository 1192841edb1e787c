"""Rows of some fixed buckets are dropped: all of them, no other, and whoever reads a cut still sees them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import StoreError
from satrap.optim import Adagrad
from satrap.schema import Table
from satrap.store import BUCKETS, Eviction, Shard, Tier, bucket_of

TABLES = [Table("a", dim=4), Table("b", dim=4), Table("c", dim=3)]


def filled(rows: int, seed: int, **arguments: object) -> tuple[Shard, dict[str, np.ndarray]]:
    shard = Shard(TABLES, seed=seed, optimizer=Adagrad(lr=0.1), **arguments)
    rng = np.random.default_rng(seed)
    made = {t.name: rng.choice(10**6, rows, replace=False).astype(np.uint64) for t in TABLES}
    for table, ids in made.items():
        shard.lookup(table, ids)
    return shard, made


@settings(max_examples=12, deadline=None)
@given(
    rounds=st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=4),
    rows=st.integers(0, 3000),
    seed=st.integers(0, 9),
    evicts=st.booleans(),
)
def test_rows_of_dropped_buckets_are_gone_and_can_come_back(
    rounds: list[set[int]], rows: int, seed: int, evicts: bool
) -> None:
    """The oracle is a set of ids by table."""
    bounds = {"memory": 8 << 20, "eviction": Eviction()} if evicts else {}
    shard, made = filled(rows, seed, **bounds)
    model = {table: set(ids.tolist()) for table, ids in made.items()}
    for parts in rounds:
        dropped = [bucket for bucket in range(BUCKETS) if bucket % 8 in parts]
        lost = {t: {i for i in ids if _bucket(t, i) % 8 in parts} for t, ids in model.items()}
        counts = shard.rows_by_bucket().sum(axis=0)
        assert counts[dropped].sum() == sum(map(len, lost.values()))
        assert shard.discard(dropped) == counts[dropped].sum()
        for table, ids in model.items():
            ids -= lost[table]
            found = [i for chunk in shard.export(table) for i in chunk.ids.tolist()]
            assert set(found) == ids
            assert len(found) == len(ids) == shard.statistics().tables[table].rows
            assert shard.statistics().tables[table].evicted == 0
            back = np.array(sorted(lost[table])[::2], np.uint64)
            fresh, known = shard.peek(table, back)
            assert not known.any()
            np.testing.assert_array_equal(shard.lookup(table, back), fresh)
            ids |= set(back.tolist())
    shard.close()


def _bucket(table: str, number: int) -> int:
    return int(bucket_of(table, np.array([number], np.uint64))[0])


def test_a_cut_in_progress_still_has_dropped_rows_and_the_next_changes_are_full() -> None:
    shard, _ = filled(2000, 1)
    shard.changes.take()
    before = {t.name: list(shard.export(t.name)) for t in TABLES}
    cut = shard.snapshot(chunk_rows=100)
    first = next(cut)
    shard.discard(range(0, BUCKETS, 2))
    found = [first, *cut]
    for table, chunks in before.items():
        ids = np.concatenate([chunk.ids for chunk in found if chunk.table == table])
        weights = np.concatenate([chunk.weights for chunk in found if chunk.table == table])
        np.testing.assert_array_equal(ids, np.concatenate([chunk.ids for chunk in chunks]))
        np.testing.assert_array_equal(weights, np.concatenate([chunk.weights for chunk in chunks]))
    delta = shard.changes.take()
    assert delta.full
    assert not delta.deleted


def test_slots_that_a_lookup_remembered_are_not_used_for_rows_that_are_gone() -> None:
    shard, made = filled(500, 2)
    ids, splits = made["c"], np.array([0, 500], np.int64)
    group, _ = shard.group_of("c")
    _, slots = shard.lookup_slots(group, ids, splits)
    gone = bucket_of("c", ids) < 2000
    shard.discard(range(2000))
    other = np.arange(10**7, 10**7 + 500, dtype=np.uint64)
    before = shard.lookup("c", other)  # these take the free slots
    shard.update_group(group, ids, splits, np.ones((500, 3), np.float32), lr_scale=1.0, slots=slots)
    np.testing.assert_array_equal(shard.peek("c", other)[0], before)
    assert shard.statistics().tables["c"].dropped == gone.sum()


def test_a_tier_refuses(tmp_path: object) -> None:
    shard, _ = filled(10, 3, memory=16 << 20, eviction=Eviction(), tier=Tier(str(tmp_path), 1 << 22))
    with pytest.raises(StoreError, match="tier"):
        shard.discard([1])
    assert sum(table.rows for table in shard.statistics().tables.values()) == 30
    shard.close()
