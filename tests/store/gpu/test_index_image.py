"""An index that was saved goes on elsewhere: the same slots, and the same rows leave next."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from satrap.errors import StoreError
from satrap.retention import Eviction
from satrap.store.gpu import index_image
from satrap.store.gpu.index import DeviceIndex
from satrap.store.gpu.order import Order

pytestmark = pytest.mark.triton
NAMES = ["a", "b"]


def look_up(index: DeviceIndex, ids: np.ndarray) -> list[int]:
    order = Order(NAMES, 64, "cpu")
    padded = torch.zeros(64, dtype=torch.int64)
    padded[: len(ids)] = torch.from_numpy(ids.astype(np.int64))
    half = len(ids) // 2
    splits, count = torch.tensor([0, half, len(ids)]), torch.tensor([len(ids)], dtype=torch.int32)
    distinct = order.distinct(padded, splits, count)
    slots, missing, misses = index.find(distinct, use=True)
    slots = index.insert(distinct, missing, misses)
    return slots[distinct.inverse[: len(ids)].long()].tolist()


def test_the_same_rows_leave_next() -> None:
    index, rng = DeviceIndex(NAMES, 60, Eviction(), device="cpu"), np.random.default_rng(0)
    for _ in range(6):
        look_up(index, rng.integers(0, 80, 40))
    other = DeviceIndex(NAMES, 60, Eviction(), device="cpu")
    index_image.restore(other, index_image.save(index))
    assert other.counters()["rows"].tolist() == index.counters()["rows"].tolist()
    for _ in range(4):
        ids = rng.integers(0, 80, 40)
        assert look_up(other, ids) == look_up(index, ids)
    for one, two in zip(index.entries(), other.entries(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_another_size_is_refused_and_changes_nothing() -> None:
    index = DeviceIndex(NAMES, 60, Eviction(), device="cpu")
    look_up(index, np.arange(20))
    other = DeviceIndex(NAMES, 6000, Eviction(), device="cpu")
    with pytest.raises(StoreError, match="does not fit this store"):
        index_image.restore(other, index_image.save(index))
    assert other.slots == 0
