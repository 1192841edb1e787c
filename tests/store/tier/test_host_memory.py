"""Records in host memory."""

from __future__ import annotations

import numpy as np

from satrap.optim import Adam
from satrap.schema import Table
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_spec import RowSpec
from satrap.store.tier.host_memory import RecordMemory


def test_records_are_kept_until_they_are_forgotten() -> None:
    kind = RowSpec([Table("a", dim=3, dtype="bfloat16")], Adam(lr=1.0), 0)
    memory, size = RecordMemory(kind, 100, ThreadPool(1)), kind.plan.row_bytes
    records = np.random.default_rng(0).integers(0, 256, (40, size)).astype(np.uint8)
    slots = np.random.default_rng(1).permutation(100)[:40].astype(np.int32)
    memory.reserve(40)
    memory.reserve(7)
    assert (memory.bytes, memory.path) == (40 * size, None)
    memory.write(slots, records)
    memory.write(slots[:5], records[5:10])
    memory.prefetch(slots)
    np.testing.assert_array_equal(memory.read(slots), np.concatenate([records[5:10], records[5:]]))
    memory.reserve(1000)
    assert memory.bytes == 100 * size
    memory.clear()
    assert memory.bytes == 0
    assert not memory.read(slots).any()
    memory.close()
