from dataclasses import astuple

import numpy as np

from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Eviction, Shard, Statistics, Tier
from satrap.store.statistics import TableStatistics, TierStatistics, merged, summed


def test_sums_are_taken_counter_by_counter():
    one, other = TableStatistics(rows=1, hits=2), TableStatistics(rows=10, dropped=5)
    assert summed([one, other]) == TableStatistics(rows=11, hits=2, dropped=5)
    assert summed([TierStatistics(reads=3)]) == TierStatistics(reads=3)
    assert summed([]) is None
    assert set(astuple(TableStatistics()) + astuple(TierStatistics())) == {0}
    assert Statistics() == Statistics(rows=0, bytes=0, refused=0, load_factor=(), tables={}, tier=None)
    assert (Statistics().rows, Statistics().bytes, Statistics().refused) == (0, 0, 0)


def test_stores_together_have_the_rows_of_all():
    stores = [Shard([Table("a", dim=4), Table("b", dim=8)], optimizer=SGD(lr=1.0)) for _ in range(2)]
    for store, rows in zip(stores, (10, 300), strict=True):
        store.lookup("a", np.arange(rows, dtype=np.uint64))
    parts = [store.statistics() for store in stores]
    both = Statistics(**merged(parts))
    assert (both.rows, both.tables["a"].misses, both.tables["b"].rows) == (310, 310, 0)
    assert both.bytes == parts[0].bytes + parts[1].bytes
    assert both.load_factor == tuple(np.mean([part.load_factor for part in parts], 0))
    assert both.tier is None
    assert Statistics(**merged(parts[:1])) == parts[0]


def test_tiers_are_added_up(tmp_path):
    bounds = {"memory": 4 << 20, "eviction": Eviction("lru"), "tier": Tier(str(tmp_path), 2 << 20)}
    store = Shard([Table("a", dim=4), Table("b", dim=8)], optimizer=SGD(lr=1.0), **bounds)
    for table in "ab":
        store.lookup(table, np.arange(80_000, dtype=np.uint64))
    tier, parts = store.statistics().tier, [group.backend.slower() for group in store.groups]
    assert all(part.rows > 0 for part in parts)
    assert tier.rows == sum(part.rows for part in parts)
    assert Statistics(**merged([store.statistics()] * 2)).tier.bytes == 2 * tier.bytes
    store.close()
