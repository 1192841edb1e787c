"""Counters of many tables, and of many keys."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.retention import Eviction
from satrap.store.gpu import index as host
from tests.store.gpu.both import Both, random_ids

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("tables", [2, 15, 16, 17, 40])
def test_each_table_counts_its_own(tables: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_COUNTED", 16)  # several parts
    rng = np.random.default_rng(tables)
    both = Both(tables, 150, Eviction("lru"), capacity=300)
    for _ in range(3):
        both.request(random_ids(rng, 140, tables, 20))
    counters = both.index.counters()
    assert counters["created"].sum() - counters["evicted"].sum() == counters["rows"].sum()


def test_one_table_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_COUNTED", 16)
    both = Both(1, 50)
    both.request(random_ids(np.random.default_rng(0), 300))
    assert both.index.counters()["refused"].tolist() == [250]
