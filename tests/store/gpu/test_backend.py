"""The contract of row backends, for rows on a device."""

from __future__ import annotations

import pytest
from hypothesis import Phase

from satrap.optim import RowWiseAdagrad
from satrap.retention import Eviction
from satrap.store.gpu import budget
from satrap.store.gpu.backend import DeviceRows
from satrap.store.memory.directory import Budget
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.tier import Tier, Tiered
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


def before_memory(kind, folder):
    return Tiered(evicting(kind, folder), Tier("memory", 1 << 20), 5000, ThreadPool(1))


def before_disk(kind, folder):
    return Tiered(evicting(kind, folder), Tier(folder, 1 << 20), 5000, ThreadPool(1))


@pytest.fixture(autouse=True)
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"gpu": plain, "gpu, growing": growing, "ram, lru": evicting, "ram, ttl": ageing}
    made |= {"gpu + memory": before_memory, "gpu + disk": before_disk}
    monkeypatch.setattr(contract, "BACKENDS", made)


@pytest.mark.parametrize(
    "name", ["gpu", "gpu, growing", "ram, lru", "ram, ttl", "gpu + memory", "gpu + disk"]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_random_calls_equal_the_model(name: str, dtype: str) -> None:
    contract.run(
        name, RowWiseAdagrad(lr=0.1), dtype, examples=4, steps=15, phases=(Phase.generate,)
    )  # shrinking takes hours
