import gc
import weakref

import numpy as np

from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Eviction, RowChunk, Shard, Tier
from satrap.store.memory.directory import budget
from satrap.store.memory.ram import Ram
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_spec import RowSpec
from satrap.store.tier import Tiered

KIND = RowSpec([Table("a", dim=4)], SGD(lr=1), 3)


def tiered(folder, rows=70, records=10_000):
    plan = KIND.plan
    room = budget(102_400 + rows * (plan.row_bytes + 28), plan.row_bytes, plan.stride, 1, Eviction())
    tier, workers = Tier(folder, records * plan.row_bytes), ThreadPool(1)
    return Tiered(Ram(KIND, room, Eviction(), workers), tier, records, workers)


def lookup(backend, ids):
    splits = np.array([0, len(ids)])
    places = backend.find(ids, splits, use=True)
    if len(places.missing):
        backend.create(ids, splits, places, places.absent)
    out = np.empty((len(ids), 4), np.float32)
    backend.gather(ids, splits, places, out)
    return places, out


def test_a_request_larger_than_memory_has_all_its_rows_in_one_part_or_the_other(tmp_path):
    backend, ids = tiered(tmp_path), np.arange(5000, dtype=np.uint64)
    places, rows = lookup(backend, ids)
    inside = int((places.slots >= 0).sum())
    assert 0 < inside < 500
    assert len(places.absent) == len(places.missing) == 5000 - inside  # made in the file just now
    again, same = lookup(backend, ids)
    np.testing.assert_array_equal(rows, same)
    assert len(again.absent) == 0
    assert backend.slower().rows == 5000 - inside
    assert backend.counters()["rows"].tolist() == [5000]
    backend.close()


def test_memory_of_a_backend_that_nobody_holds_is_given_back_at_once(tmp_path):
    """Gigabytes must not wait for the collector of cycles."""
    gc.disable()
    try:
        backend = tiered(tmp_path)
        lookup(backend, np.arange(500, dtype=np.uint64))
        slab = weakref.ref(backend.memory.slab)
        backend.close()
        del backend
        assert slab() is None
    finally:
        gc.enable()


def test_rows_that_are_peeked_warm_come_to_memory_and_none_is_made_or_changed(tmp_path):
    """Any requests, of ids with and without a row: the oracle is a dict."""
    memory, rows, records = 450_000, 5_000, 10_000
    tables = [Table("a", dim=4), Table("b", dim=4)]
    store = Shard(
        tables,
        seed=3,
        optimizer=SGD(lr=1),
        memory=memory,
        eviction=Eviction("lfu"),
        tier=Tier(tmp_path, records * 16),
    )
    random, ids = np.random.default_rng(5), np.arange(rows, dtype=np.uint64)
    weights = random.normal(size=(rows, 4)).astype(np.float32)
    for first in range(0, rows, 500):
        part = slice(first, first + 500)
        store.load("a", RowChunk("a", ids[part], weights[part], np.empty((500, 0), np.float32)))
    group = store.groups[0]
    assert 500 < group.directory.limit < rows / 2
    initial = store.another().peek("b", ids)[0]

    def ask(chosen, warm):
        splits = np.array([0, len(chosen), len(chosen) + 20])
        found, there = store.peek_group(0, np.concatenate([chosen, ids[:20]]), splits, warm=warm)
        known = chosen < rows
        np.testing.assert_array_equal(there[: len(chosen)], known)
        assert not there[len(chosen) :].any()
        np.testing.assert_array_equal(found[: len(chosen)][known], weights[chosen[known]])
        np.testing.assert_array_equal(found[len(chosen) :], initial[:20])

    def reads():
        return store.statistics().tier.reads

    for _ in range(60):
        chosen = random.choice(rows + 200, 100, replace=False).astype(np.uint64)
        ask(chosen, warm=True)
        before = reads()
        ask(chosen, warm=False)
        assert reads() == before  # all of them are in memory now
        changed = random.choice(rows, 50, replace=False)
        weights[changed] = random.normal(size=(50, 4)).astype(np.float32)  # in memory and in the file
        store.load("a", RowChunk("a", ids[changed], weights[changed], np.empty((50, 0), np.float32)))
    assert store.statistics().rows == rows
    assert store.statistics().tables["a"].evicted == 0
    before = reads()
    cold = random.choice(rows, 200, replace=False).astype(np.uint64)
    ask(cold, warm=False)
    ask(cold, warm=False)
    assert reads() - before > 200  # a plain one brings nothing
    ask(np.arange(rows, dtype=np.uint64), warm=True)  # more than memory holds
    store.close()
