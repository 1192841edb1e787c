"""Marks of slots against a set of numbers."""

import numpy as np
import pytest

from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Shard
from satrap.store.snapshot.cut_bitmap import Unread


@pytest.mark.parametrize("rows", [1, 8, 1000])
def test_each_slot_is_claimed_once(rows):
    store = Shard([Table("a", dim=1)], optimizer=SGD(lr=1))
    store.lookup("a", np.arange(rows, dtype=np.uint64))
    part = store.groups[0].backend.parts[0]
    without = np.zeros(rows // 8 + 1, np.uint8)
    without[0] = 1  # slot 0
    unread, left, rng = Unread(part, without), set(range(1, rows)), np.random.default_rng(0)
    assert unread.limit == rows
    while left:
        assert 0 <= unread.count - len(left) <= 8
        slots = rng.permutation(rows + 20)[: rng.integers(1, rows + 2)].astype(np.int32)
        np.testing.assert_array_equal(unread.among(slots), np.isin(slots, list(left)))
        won = slots[unread.claim(slots)].tolist()
        assert won == [slot for slot in slots.tolist() if slot in left]
        left -= set(won)
    assert not unread.among(np.arange(rows, dtype=np.int32)).any()
