"""Rows of a device are the records of rows in RAM, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from satrap.optim import FTRL, SGD, Adam, RowWiseAdagrad
from satrap.schema import Table
from satrap.store.gpu.records import DeviceRecords
from satrap.store.gpu.slab import DeviceSlab
from satrap.store.memory.slab import Slab
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_spec import RowSpec

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "optimizer", [SGD(lr=1.0), RowWiseAdagrad(lr=1.0), Adam(lr=1.0), FTRL(lr=1.0)], ids=repr
)
def test_records_come_back_unchanged(dtype: str, optimizer: object) -> None:
    kind, rng = RowSpec([Table("a", dim=5, dtype=dtype)], optimizer, 3), np.random.default_rng(0)
    loose = Slab(kind, 40, ThreadPool(1))
    weights = rng.standard_normal((40, 5)).astype(np.float32)
    state = rng.integers(0, 9, (40, kind.plan.width)).astype(np.float32)
    loose.write(rng.integers(0, 2**63, 40).astype(np.uint64), loose.slots, weights, state)
    records = loose.records(loose.slots)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    there, slots = DeviceRecords(DeviceSlab(kind, 100, device)), rng.permutation(100)[:40].astype(np.int32)
    there.put(slots, records)
    item = 4 if dtype == "float32" else 2
    mine = there.records(slots)
    padding = np.arange(5 * item, kind.plan.weights)
    assert np.delete(mine, padding, axis=1).tobytes() == np.delete(records, padding, axis=1).tobytes()
    there.put(slots[:7], records[7:14])
    assert np.delete(there.records(slots[:7]), padding, axis=1).tobytes() == (
        np.delete(records[7:14], padding, axis=1).tobytes()
    )
