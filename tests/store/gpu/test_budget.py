"""How many rows fit a device, and how an index grows until they are there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from satrap.errors import ConfigError, StoreError
from satrap.optim import SGD, Adam, RowWiseAdagrad
from satrap.schema import Table
from satrap.store.gpu import budget
from satrap.store.gpu.backend import DeviceRows
from satrap.store.gpu.budget import INDEX_BYTES, device_budget, index_sizes, row_bytes
from satrap.store.gpu.index import MOST_ROWS, DeviceIndex
from satrap.store.gpu.slab import DeviceSlab
from satrap.store.memory.directory import Budget
from satrap.store.row_spec import RowSpec

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("dim", [1, 3, 16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", [SGD(lr=1.0), RowWiseAdagrad(lr=1.0), Adam(lr=1.0)], ids=repr)
def test_bytes_of_a_row_are_the_memory_it_takes(dim: int, dtype: str, optimizer: object) -> None:
    kind = RowSpec([Table("a", dim=dim, dtype=dtype)], optimizer, 0)
    slab = DeviceSlab(kind, 100, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    scalars = slab.scalars.nbytes if kind.plan.layout.scalar else 0
    assert 100 * row_bytes(kind.plan, dim) == slab.rows.nbytes + scalars
    each = row_bytes(kind.plan, dim) + INDEX_BYTES
    assert device_budget(7 * each + each - 1, kind).rows == 7
    assert device_budget(1 << 60, kind).rows == MOST_ROWS
    with pytest.raises(ConfigError, match=f"a memory budget of {each - 1} bytes is too small"):
        device_budget(each - 1, kind)


def test_sizes_of_an_index() -> None:
    assert index_sizes(1000) == [1000]
    assert index_sizes(1 << 30) == [1 << 18, 1 << 22, 1 << 26, 1 << 30]


def ask(rows: DeviceRows, first: int, count: int) -> np.ndarray:
    """Look up ids of one table, create those without a row, and return the weights."""
    ids, splits = np.arange(first, first + count, dtype=np.uint64), np.array([0, count, count])
    places = rows.find(ids, splits, use=True)
    if len(places.missing):
        rows.create(ids, splits, places, places.absent)
    assert (places.slots >= 0).all()
    out = np.empty((count, rows.kind.dim), np.float32)
    rows.gather(ids, splits, places, out)
    return out


KIND = RowSpec([Table("a", dim=4), Table("b", dim=4)], RowWiseAdagrad(lr=0.1), 3)


def rows_of(most: int, smallest: int, monkeypatch: pytest.MonkeyPatch) -> DeviceRows:
    monkeypatch.setattr(budget, "SMALLEST", smallest)
    return DeviceRows(KIND, Budget(most, 0), None, "cuda")


def test_an_index_grows_with_its_rows_up_to_the_most_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(1200, 4, monkeypatch)
    assert (rows.index.rows, rows.directory.limit) == (4, 1200)
    for first in (0, 500):
        ask(rows, first, 500)
    assert (rows.index.rows, rows.directory.limit) == (1200, 1200)
    np.testing.assert_array_equal(
        ask(rows, 0, 1000), ask(DeviceRows(KIND, Budget(1200, 0), None, "cuda"), 0, 1000)
    )
    rows.clear()
    assert rows.counters()["rows"].tolist() == [0, 0]
    ask(rows, 0, 10)


def test_requests_for_rows_that_are_there_do_not_let_an_index_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "AHEAD", 1)
    rows = rows_of(1 << 13, 1 << 8, monkeypatch)
    for _ in range(6):
        ask(rows, 0, 100)
    assert rows.index.rows == 1 << 9
    ask(rows, 100, 300)
    assert rows.index.rows == 1 << 13


def test_without_memory_to_grow_the_request_is_refused_and_all_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(1 << 13, 1 << 8, monkeypatch)
    before, image = ask(rows, 0, 100), rows.index.table.words.clone()
    assert rows.index.rows == 1 << 9

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as patch:
        patch.setattr(DeviceIndex, "_empty", full)
        for _ in range(2):
            with pytest.raises(StoreError, match="no memory left for a request"):
                ask(rows, 100, 500)
        np.testing.assert_array_equal(ask(rows, 0, 100), before)
    words = rows.index.table.words
    assert torch.equal(words, image)
    assert rows.counters()["rows"].tolist() == [100, 0]
    ask(rows, 100, 500)
    assert rows.index.rows == 1 << 13
    np.testing.assert_array_equal(ask(rows, 0, 100), before)
