"""The contract of row backends, for rows on a device."""

from __future__ import annotations

import pytest
from hypothesis import Phase

from satrap.optim import RowWiseAdagrad
from satrap.retention import Eviction
from satrap.store.gpu.backend import DeviceRows
from satrap.store.memory.directory import Budget
from tests.store import backend_contract as contract

pytestmark = pytest.mark.triton


def plain(kind, folder):
    return DeviceRows(kind, Budget(1200, 0), None, "cuda")


def evicting(kind, folder):
    return DeviceRows(kind, Budget(70, 0), Eviction(), "cuda")


def ageing(kind, folder):
    return DeviceRows(kind, Budget(70, 0), Eviction("ttl", ttl=6), "cuda")


@pytest.fixture(autouse=True)
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "BACKENDS", {"gpu": plain, "ram, lru": evicting, "ram, ttl": ageing})


@pytest.mark.parametrize("name", ["gpu", "ram, lru", "ram, ttl"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_random_calls_equal_the_model(name: str, dtype: str) -> None:
    contract.run(
        name, RowWiseAdagrad(lr=0.1), dtype, examples=4, steps=15, phases=(Phase.generate,)
    )  # shrinking takes hours
