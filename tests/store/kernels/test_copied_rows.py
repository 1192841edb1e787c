import numpy as np
import pytest

from satrap.store.hashes import bucket_of
from satrap.store.kernels import copied_rows
from satrap.store.snapshot.copy_on_write import CopyOnWrite

U = np.uint64
PLACES = 500


def holding(ids, below=0):
    """Return copies of one table whose rows have two weights and one float of state."""
    copies = CopyOnWrite(("a",), 2, 1, PLACES)
    copies.let_go(0, below)
    put(copies, ids)
    return copies


def put(copies, ids):
    values = ids.astype(np.float32)
    weights, state = np.stack([values, values + 1], axis=1), values[:, None] + 2
    assert copies.put(np.zeros(len(ids), np.int32), ids, weights, state)


@pytest.mark.parametrize("bound", [1, 2000, 4095])
def test_rows_are_listed_by_bucket_and_let_go_by_bucket(bound):
    ids = np.arange(100, 100 + PLACES, dtype=U)
    copies, expected = holding(ids), bucket_of("a", ids)
    for first, last in ((0, bound - 1), (bound, 4095)):
        found, places, buckets = copies.find(0, first, last)
        np.testing.assert_array_equal(np.sort(found), ids[(expected >= first) & (expected <= last)])
        np.testing.assert_array_equal(buckets, bucket_of("a", found))
        rows = np.add.outer(found.astype(np.float32), np.arange(3))
        np.testing.assert_array_equal(copies._copies.rows[places], rows)
    below = len(copies.find(0, 0, bound - 1)[0])
    copies.let_go(0, bound)
    assert copies._copies.counts.tolist() == [PLACES, below]
    assert len(copies.find(0, 0, 4095)[0]) == PLACES - below
    fresh = np.arange(10**6, 4 * 10**6, dtype=U)
    put(copies, fresh[bucket_of("a", fresh) >= bound][:below])  # in the places that are free again
    assert copies._copies.counts.tolist() == [PLACES, 0]
    assert len(set(copies.find(0, 0, 4095)[1].tolist())) == PLACES


def test_rows_of_buckets_that_are_done_are_left_out():
    ids = np.arange(PLACES, dtype=U)
    assert holding(ids, below=3000)._copies.counts[copied_rows.USED] == (bucket_of("a", ids) >= 3000).sum()
