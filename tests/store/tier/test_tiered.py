import gc
import weakref

import numpy as np

from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Eviction, Tier
from satrap.store.directory import budget
from satrap.store.ram import Ram
from satrap.store.steps import RowKind
from satrap.store.tier import Tiered
from satrap.store.workers import Workers

KIND = RowKind([Table("a", dim=4)], SGD(lr=1), 3)


def tiered(folder, rows=70, records=10_000):
    plan = KIND.plan
    room = budget(102_400 + rows * (plan.row_bytes + 28), plan.row_bytes, plan.stride, 1, Eviction())
    tier, workers = Tier(folder, records * plan.row_bytes), Workers(1)
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
