import threading

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.optim import Adam
from satrap.schema import Table
from satrap.store import Eviction, Shard, Tier

U = np.uint64
SPLITS = np.array([0, 100])


@pytest.fixture
def store(tmp_path):
    made = Shard(
        [Table("a", dim=8)],
        optimizer=Adam(lr=0.1),
        memory=420_000,
        eviction=Eviction(),
        tier=Tier(tmp_path, 600_000),
    )
    made.lookup("a", np.arange(5_000, dtype=U))
    yield made
    made.close()


def test_nobody_waits_and_late_requests_are_left_out(store):
    with store._lock:  # as while a long request is served
        other = threading.Thread(
            target=lambda: [
                store.ahead.prefetch(0, np.arange(i, i + 100, dtype=U), SPLITS)
                for i in range(2_000, 5_000, 100)
            ]
        )
        other.start()
        other.join(10)
        assert not other.is_alive()
    store.ahead.settle()
    assert store.statistics().tier.prefetched == 1_600
    assert (store.ahead._waiting, store.ahead._ids) == (0, 0)


def test_many_ids_are_left_out_like_many_requests(store, monkeypatch):
    monkeypatch.setattr("satrap.store.tier.prefetch.MOST_IDS", 300)
    monkeypatch.setattr("satrap.store.tier.prefetch.PIECE", 64)
    with store._lock:
        asked = (np.arange(i, i + 100, dtype=U) for i in range(2_000, 2_500, 100))
        other = threading.Thread(target=lambda: [store.ahead.prefetch(0, ids, SPLITS) for ids in asked])
        other.start()
        other.join(10)
    store.ahead.settle()
    assert store.statistics().tier.prefetched == 300


def test_bad_requests_are_refused(store):
    for group in (1, -1):
        with pytest.raises(StoreError, match=f"group {group} does not exist"):
            store.ahead.prefetch(group, np.arange(100, dtype=U), SPLITS)
    with pytest.raises(StoreError, match="ids must be uint64"):
        store.ahead.prefetch(0, np.arange(100), SPLITS)
    with pytest.raises(StoreError, match="splits"):
        store.ahead.prefetch(0, np.arange(99, dtype=U), SPLITS)


def test_without_a_tier_it_does_nothing():
    store = Shard([Table("a", dim=8)], optimizer=Adam(lr=0.1))
    assert not store.ahead.useful
    store.ahead.prefetch(0, np.arange(100, dtype=U), SPLITS)
    store.ahead.settle()
    assert store.statistics().tier is None
    store.close()


def test_a_closed_store_prefetches_no_more(store):
    store.ahead.prefetch(0, np.arange(100, dtype=U), SPLITS)
    store.close()
    store.ahead.prefetch(0, np.arange(100, dtype=U), SPLITS)
    store.close()
