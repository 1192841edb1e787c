"""Rows that arrive in the order of their hash, as every export and checkpoint yields them."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Eviction, Shard, bucket_of
from tests.support.covering import covering


def test_what_one_store_exports_another_loads() -> None:
    rows = 300_000
    ids = np.random.default_rng(0).integers(0, 2**63, rows, dtype=np.uint64)
    source, target = (Shard([Table("user", dim=1)], optimizer=SGD(lr=1.0), seed=3) for _ in range(2))
    source.lookup("user", ids)
    for chunk in source.export("user"):
        target.load("user", chunk)
    assert target.statistics().rows == source.statistics().rows
    np.testing.assert_array_equal(target.peek("user", ids)[0], source.peek("user", ids)[0])
    assert target.peek("user", ids)[1].all()


@pytest.mark.parametrize(
    ("memory", "eviction"),
    covering([3 << 20, 8 << 20, 20 << 20], [None, Eviction()]),
    ids=lambda value: getattr(value, "policy", str(value).lower()),
)
def test_a_full_store_loads_what_a_full_store_exports(memory: int, eviction: Eviction | None) -> None:
    tables = [Table("a", dim=4), Table("b", dim=4)]
    source, target = (
        Shard(tables, optimizer=SGD(lr=1.0), memory=memory, eviction=eviction) for _ in range(2)
    )
    left, rng = source.groups[0].directory.room, np.random.default_rng(0)
    while left:
        ids = rng.integers(0, 2**63, min(left, 5000), dtype=np.uint64)
        source.lookup("ab"[left % 2], ids)
        left -= len(ids)
    for chunk in source.snapshot():
        target.load(chunk.table, chunk)
    assert target.statistics().rows == source.statistics().rows
    assert not any(t.evicted for t in target.statistics().tables.values())
    for one, other in zip(source.snapshot(), target.snapshot(), strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.weights, other.weights)


def test_64_stores_that_share_a_table_by_hash() -> None:
    """As the shards of one table do: each sees a 64th of the hashes only."""
    ids = np.random.default_rng(0).integers(0, 2**63, 200_000, dtype=np.uint64)
    shards = [
        Shard([Table("user", dim=2)], optimizer=SGD(lr=1.0), memory=1 << 18, threads=1) for _ in range(64)
    ]
    owner = bucket_of("user", ids) // 64
    for number, shard in enumerate(shards):
        shard.lookup("user", ids[owner == number])
    assert sum(shard.statistics().rows for shard in shards) == len(np.unique(ids))
    for number, shard in enumerate(shards):
        assert shard.peek("user", ids[owner == number])[1].all()
        shard.close()
