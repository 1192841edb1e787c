"""The host's view of an index on a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import bucket_of
from satrap.store.gpu.backend import DeviceRows
from satrap.store.gpu.directory import EachOnce
from satrap.store.memory.directory import Budget
from satrap.store.row_spec import RowSpec

pytestmark = pytest.mark.triton
NAMES = ("a", "b")


def filled() -> tuple[DeviceRows, np.ndarray, np.ndarray]:
    """Rows of 20 ids in one table and of the same, and 10 others, in another."""
    tables = [Table(name, dim=4) for name in NAMES]
    rows = DeviceRows(RowSpec(tables, SGD(lr=1.0), 3), Budget(100, 0), None, "cuda")
    ids = np.concatenate([np.arange(20), np.arange(30)]).astype(np.uint64)
    splits = np.array([0, 20, 50], np.int64)
    places = rows.find(ids, splits, use=True)
    rows.create(ids, splits, places, places.absent)
    return rows, ids, places.slots


def test_rows_are_listed_by_table_and_fixed_bucket() -> None:
    rows, ids, slots = filled()
    directory = rows.directory
    for t, (first, end) in enumerate(((0, 20), (20, 50))):
        own = dict(zip(ids[first:end].tolist(), slots[first:end].tolist(), strict=True))
        mine, places, buckets = directory.collect(t, 0, 4095)
        assert dict(zip(mine.tolist(), places.tolist(), strict=True)) == own
        np.testing.assert_array_equal(buckets, bucket_of(NAMES[t], mine))
        some, _, _ = directory.collect(t, 1000, 2000)
        assert set(some.tolist()) == {
            i for i in own if 1000 <= bucket_of(NAMES[t], np.array([i], np.uint64))[0] <= 2000
        }


def test_slots_get_the_names_of_their_rows() -> None:
    rows, ids, slots = filled()
    named, owners = np.zeros(50, np.uint64), np.full(50, -1, np.int32)
    for t in range(2):
        rows.directory.name_slots(t, 0, 4095, 0, named, owners)
    np.testing.assert_array_equal(named[slots], ids)
    np.testing.assert_array_equal(owners[slots], [0] * 20 + [1] * 30)


def test_room_and_load_follow_the_rows() -> None:
    rows, _, _ = filled()
    directory = rows.directory
    assert (directory.room, directory.limit, directory.slots, directory.step) == (50, 100, 50, 1)
    assert 0.3 < directory.load_factor < 0.5
    directory.step = 7
    assert directory.step == 7


def test_each_id_is_a_run_of_its_own() -> None:
    once = EachOnce.of(np.array([5, 2**64 - 1, 5], np.uint64), np.array([0, 2, 3]), torch.device("cpu"))
    assert once.ids.tolist() == [5, -1, 5]
    assert once.tables.tolist() == [0, 0, 1]
    assert once.starts.tolist() == [0, 1, 2, 3]
    assert int(once.runs) == 3
