import numpy as np
import pytest

from satrap.optim import SGD, Adam, RowWiseAdagrad
from satrap.schema import Table
from satrap.store.memory.slab import Slab
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_spec import RowSpec


@pytest.mark.parametrize("huge", [None, False, True])
@pytest.mark.parametrize("optimizer", [SGD(lr=1), RowWiseAdagrad(lr=1), Adam(lr=1)], ids=lambda o: o.name)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_come_back_as_they_were_written_and_as_records(huge, optimizer, dtype):
    kind, workers = RowSpec([Table("a", dim=7, dtype=dtype)], optimizer, 3), ThreadPool(2)
    one, other, n = Slab(kind, 30_000, workers, huge=huge), Slab(kind, 20_000, workers), 20_000
    rng = np.random.default_rng(0)
    weights = rng.integers(-100, 100, (n, 7)).astype(np.float32)
    state = rng.random((n, kind.plan.width)).astype(np.float32)
    slots, ids = rng.permutation(30_000)[:n].astype(np.int32), np.arange(n, dtype=np.uint64)
    one.write(ids, slots, weights, state)
    records = one.records(slots)
    assert records.shape == (n, kind.plan.row_bytes)
    other.put(other.slots, records)
    for found in (one.read(slots), other.read(other.slots)):
        np.testing.assert_array_equal(found[0], weights)
        np.testing.assert_array_equal(found[1], state)
    some, out = np.where(ids % 3, slots, -1).astype(np.int32), np.full((n, 7), np.nan, np.float32)
    one.gather(some, out)
    np.testing.assert_array_equal(out[some >= 0], weights[some >= 0])
    assert np.isnan(out[some < 0]).all()
    assert len(one.slots) == (30_000 if huge is None else 0)
    workers.close()


def test_new_rows_are_what_is_read_without_a_row():
    kind = RowSpec([Table("a", dim=3), Table("b", dim=3, initial_scale=0.5)], RowWiseAdagrad(lr=1), 3)
    slab, out = Slab(kind, 4, ThreadPool(1)), np.zeros((4, 3), np.float32)
    ids, splits = np.array([5, 6, 5, 7], np.uint64), np.array([0, 2, 4])
    slab.initialize(ids, splits, np.arange(4), slab.slots)
    kind.initial_rows(ids, splits, np.array([0, 2, 3]), out)
    weights, state = slab.read(slab.slots)
    np.testing.assert_array_equal(out[[0, 2, 3]], weights[[0, 2, 3]])
    assert not out[1].any()
    assert (weights[0] != weights[2]).all()
    np.testing.assert_array_equal(state, np.full((4, 1), RowWiseAdagrad(lr=1).initial_accumulator))
