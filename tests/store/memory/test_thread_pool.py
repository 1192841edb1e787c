import threading

import numpy as np
import pytest

from satrap.optim import Adam
from satrap.schema import Table
from satrap.store import Eviction, Shard
from satrap.store.memory.thread_pool import SMALLEST, ThreadPool


def test_ranges_cover_everything_and_small_requests_are_not_split():
    workers = ThreadPool(3)
    assert workers.ranges(SMALLEST) == [(0, SMALLEST)]
    assert workers.ranges(0) == [(0, 0)]
    assert len(workers.ranges(2 * SMALLEST)) == 2
    parts = workers.ranges(1_000_003)
    assert [a for a, _ in parts[1:]] == [b for _, b in parts[:-1]]
    assert (parts[0][0], parts[-1][1], len(parts)) == (0, 1_000_003, 3)
    workers.close()


def test_work_runs_on_all_threads_and_errors_are_raised():
    workers, seen, barrier = ThreadPool(2), set(), threading.Barrier(2, timeout=10)

    def work(first, end):
        barrier.wait()  # passes only if both ranges run at the same time
        seen.add(threading.get_ident())

    workers.run(workers.ranges(4 * SMALLEST), work)
    assert len(seen) == 2

    def fail(first, end):
        if first:
            raise ValueError("second range")

    with pytest.raises(ValueError, match="second range"):
        workers.run(workers.ranges(4 * SMALLEST), fail)
    workers.close()


@pytest.mark.parametrize("eviction", [None, Eviction("lru"), Eviction("lfu")], ids=str)
def test_the_result_does_not_depend_on_the_number_of_threads(eviction):
    def run(threads):
        shard = Shard(
            [Table("a", dim=20), Table("b", dim=20)],
            optimizer=Adam(lr=0.1),
            threads=threads,
            memory=12 << 20,
            eviction=eviction,
        )
        rng = np.random.default_rng(0)
        for _ in range(6):
            parts = [rng.choice(30_000, 14_000, replace=False).astype(np.uint64) for _ in range(2)]
            splits, ids = np.array([0, 14_000, 28_000]), np.concatenate(parts)
            if eviction is None:
                ids %= np.uint64(9000)
                parts = [np.unique(ids[:14_000]), np.unique(ids[14_000:])]
                splits, ids = np.cumsum([0, *(len(p) for p in parts)]), np.concatenate(parts)
            _, slots = shard.lookup_slots(0, ids, splits)
            gradients = rng.standard_normal((len(ids), 20)).astype(np.float32)
            shard.update_group(0, ids, splits, gradients, slots=slots)
        chunks = [chunk for table in "ab" for chunk in shard.export(table)]
        return chunks, shard.statistics()

    (one, counts), (several, others) = run(1), run(3)
    assert counts == others
    for a, b in zip(one, several, strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)
        np.testing.assert_array_equal(a.weights, b.weights)
        np.testing.assert_array_equal(a.state, b.state)
