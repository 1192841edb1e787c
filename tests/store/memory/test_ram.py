import gc
import weakref

import numpy as np

from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Eviction
from satrap.store.backend import RowEvents
from satrap.store.memory.directory import budget
from satrap.store.memory.ram import Ram
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_spec import RowSpec

KIND = RowSpec([Table("a", dim=4), Table("b", dim=4)], SGD(lr=1), 3)


def ram(rows):
    plan = KIND.plan
    room = budget(102_400 + rows * (plan.row_bytes + 28), plan.row_bytes, plan.stride, 2, Eviction())
    return Ram(KIND, room, Eviction(), ThreadPool(1))


class Gone(RowEvents):
    """Keeps which ids of which table went."""

    def __init__(self):
        super().__init__()
        self.ids, self.calls = [[], []], 0

    def gone(self, rows):
        self.calls += 1
        for t in range(2):
            self.ids[t] += rows.ids[rows.splits[t] : rows.splits[t + 1]].tolist()


def test_an_observer_hears_of_every_row_that_goes_however_large_the_request():
    backend, gone = ram(3000), Gone()
    backend.observers.add(gone)
    kept, last = [set(), set()], 40_000
    for first in range(0, last, 10_000):
        ids, splits = np.arange(first, first + 10_000, dtype=np.uint64), np.array([0, 4000, 10_000])
        places = backend.find(ids, splits, use=True)
        backend.create(ids, splits, places, places.absent)
        for t in range(2):
            part = slice(splits[t], splits[t + 1])
            kept[t] |= set(ids[part][places.slots[part] >= 0].tolist())
    assert 1 < gone.calls < sum(map(len, gone.ids)) / 10  # in pieces, not row by row
    for t in range(2):
        left = backend.directory.collect(t, 0, 4095)[0].tolist()
        assert sorted(left + gone.ids[t]) == sorted(kept[t])


def test_memory_of_a_backend_that_nobody_holds_is_given_back_at_once():
    """Gigabytes must not wait for the collector of cycles."""
    gc.disable()
    try:
        backend = ram(100)
        slab = weakref.ref(backend.slab)
        backend.observers.add(gone := Gone())
        del backend
        assert slab() is None
        assert gone.calls == 0
    finally:
        gc.enable()


def test_rows_that_are_loaded_do_not_push_out_rows_of_the_same_request():
    backend = ram(3000)
    for first in range(0, 20_000, 1000):
        ids, splits = np.arange(first, first + 1000, dtype=np.uint64), np.array([0, 1000, 1000])
        places = backend.find(ids, splits, use=True)
        backend.create(ids, splits, places, places.absent)
    old = np.sort(backend.directory.collect(0, 0, 4095)[0])[:500]
    ids = np.concatenate([old, np.arange(10**6, 10**6 + 1500, dtype=np.uint64)])
    splits = np.array([0, len(ids), len(ids)])
    backend.write(ids, splits, np.ones((len(ids), 4), np.float32), np.empty((len(ids), 0), np.float32))
    slots, _ = backend.directory.find(old, np.array([0, 500, 500]), use=False)
    assert (slots >= 0).all()
