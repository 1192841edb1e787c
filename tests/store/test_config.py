"""A store that is opened from its configuration is the one made with the same arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Admission, Eviction, Shard, StoreConfig, Tier


def test_every_argument_reaches_the_store(tmp_path: Path) -> None:
    tables = [Table("a", dim=8, optimizer=SGD(lr=0.1), initial_scale=0.5)]
    bounds = {
        "seed": 5,
        "memory": 1 << 20,
        "admission": Admission(min_count=2, memory=256),
        "eviction": Eviction("lfu"),
        "tier": Tier(str(tmp_path), 1 << 18),
    }
    opened, made = StoreConfig(**bounds).open(tables), Shard(tables, **bounds)  # type: ignore[arg-type]
    ids = np.arange(30_000, dtype=np.uint64)
    for _ in range(3):
        np.testing.assert_array_equal(opened.lookup("a", ids), made.lookup("a", ids))
    assert opened.statistics() == made.statistics()
    assert opened.statistics().tier.rows > 0
    assert opened.seed == 5
    opened.close()
    made.close()


def test_by_default_there_are_no_bounds() -> None:
    store = StoreConfig().open([Table("a", dim=4, optimizer=SGD(lr=0.1))])
    store.lookup("a", np.arange(100, dtype=np.uint64))
    assert (store.statistics().rows, store.seed) == (100, 1)
    store.close()


def test_one_of_several_shards_has_its_share_of_memory_and_tier(tmp_path: Path) -> None:
    admission, eviction = Admission(min_count=2), Eviction("lfu")
    whole = StoreConfig(5, 1001, admission, eviction, Tier(str(tmp_path), 1 << 20), dtype="bfloat16")
    part = StoreConfig(5, 250, admission, eviction, Tier(str(tmp_path), 1 << 18), dtype="bfloat16")
    assert whole.part(4) == part
    assert StoreConfig().part(4) == StoreConfig()
