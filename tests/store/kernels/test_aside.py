import numpy as np
import pytest

from satrap.store.hashes import bucket_of, index_salt
from satrap.store.kernels import aside

U = np.uint64
PLACES = 500


class Memory:
    """The arrays of the kernels for one table with rows of two weights and one float of state."""

    def __init__(self):
        self.done, self.counts = np.zeros(1, np.int32), np.zeros(2, np.int64)
        self.kept, self.rows = np.zeros(PLACES, U), np.zeros((PLACES, 3), np.float32)
        self.heads, self.nexts, self.free = (np.zeros(n, np.int32) for n in (aside.BUCKETS, PLACES, PLACES))

    def put(self, ids):
        values = ids.astype(np.float32)
        weights, state = np.stack([values, values + 1], axis=1), values[:, None] + 2
        given = (np.zeros(len(ids), np.int32), ids, weights, state, np.array([index_salt("a")]), self.done)
        aside.put(*given, self.kept, self.rows, self.heads, self.nexts, self.free, self.counts)

    def listed(self, first, last):
        places, buckets = np.empty((2, PLACES), np.int32)
        count = aside.listed(first, last, self.heads, self.nexts, places, buckets)
        return places[:count], buckets[:count]

    def let_go(self, first, last):
        aside.let_go(first, last, self.heads, self.nexts, self.free, self.counts)


@pytest.mark.parametrize("bound", [1, 2000, 4095])
def test_rows_are_listed_by_bucket_and_let_go_by_bucket(bound):
    memory, ids = Memory(), np.arange(100, 100 + PLACES, dtype=U)
    memory.put(ids)
    for first, last in ((0, bound - 1), (bound, 4095)):
        places, buckets = memory.listed(first, last)
        found, expected = memory.kept[places], bucket_of("a", ids)
        np.testing.assert_array_equal(np.sort(found), ids[(expected >= first) & (expected <= last)])
        np.testing.assert_array_equal(buckets, bucket_of("a", found))
        np.testing.assert_array_equal(
            memory.rows[places], np.add.outer(found.astype(np.float32), np.arange(3))
        )
    below = len(memory.listed(0, bound - 1)[0])
    memory.let_go(0, bound - 1)
    assert memory.counts.tolist() == [PLACES, below]
    assert len(memory.listed(0, 4095)[0]) == PLACES - below
    memory.put(np.arange(1000, 1000 + below, dtype=U))  # in the places that are free again
    assert memory.counts.tolist() == [PLACES, 0]
    assert len(set(memory.listed(0, 4095)[0].tolist())) == PLACES


def test_rows_of_buckets_that_are_done_are_left_out():
    memory, ids = Memory(), np.arange(PLACES, dtype=U)
    memory.done[0] = 3000
    memory.put(ids)
    assert memory.counts[aside.USED] == (bucket_of("a", ids) >= 3000).sum()
