"""The contract of row backends, for rows on a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import Phase

from satrap.errors import StoreError
from satrap.optim import RowWiseAdagrad
from satrap.retention import Eviction
from satrap.schema import Table
from satrap.store.gpu import backend, budget
from satrap.store.gpu.backend import DeviceRows
from satrap.store.gpu.index import DeviceIndex
from satrap.store.memory.directory import Budget
from satrap.store.row_spec import RowSpec
from tests.store import backend_contract as contract

pytestmark = pytest.mark.triton


def plain(kind, folder):
    return DeviceRows(kind, Budget(1200, 0), None, "cuda")


def growing(kind, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "SMALLEST", 4)
        return plain(kind, folder)


def evicting(kind, folder):
    return DeviceRows(kind, Budget(70, 0), Eviction(), "cuda")


def ageing(kind, folder):
    return DeviceRows(kind, Budget(70, 0), Eviction("ttl", ttl=6), "cuda")


@pytest.fixture(autouse=True)
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"gpu": plain, "gpu, growing": growing, "ram, lru": evicting, "ram, ttl": ageing}
    monkeypatch.setattr(contract, "BACKENDS", made)


@pytest.mark.parametrize("name", ["gpu", "gpu, growing", "ram, lru", "ram, ttl"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_random_calls_equal_the_model(name: str, dtype: str) -> None:
    contract.run(
        name, RowWiseAdagrad(lr=0.1), dtype, examples=4, steps=15, phases=(Phase.generate,)
    )  # shrinking takes hours


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


def test_an_index_grows_with_its_rows_up_to_the_most_there_are() -> None:
    rows = growing(KIND, "")
    assert (rows.index.rows, rows.directory.limit) == (4, 1200)
    for first in (0, 500):
        ask(rows, first, 500)
    assert (rows.index.rows, rows.directory.limit) == (1200, 1200)
    np.testing.assert_array_equal(ask(rows, 0, 1000), ask(plain(KIND, ""), 0, 1000))
    rows.clear()
    assert rows.counters()["rows"].tolist() == [0, 0]
    ask(rows, 0, 10)


def test_requests_for_rows_that_are_there_do_not_let_an_index_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_AHEAD", 1)
    monkeypatch.setattr(budget, "SMALLEST", 1 << 8)
    rows = DeviceRows(KIND, Budget(1 << 13, 0), None, "cuda")
    for _ in range(6):
        ask(rows, 0, 100)
    assert rows.index.rows == 1 << 9
    ask(rows, 100, 300)
    assert rows.index.rows == 1 << 13


def test_without_memory_to_grow_the_request_is_refused_and_all_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "SMALLEST", 1 << 8)
    rows = DeviceRows(KIND, Budget(1 << 13, 0), None, "cuda")
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
