"""Laying an index out again, against the sequential model."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.retention import Eviction
from satrap.store.gpu import index as host
from tests.store.gpu.both import Both, random_ids

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("width", [4, 1024])
def test_an_index_grows(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SEGMENT", width)
    rng = np.random.default_rng(0)
    both = Both(2, 10, Eviction("lru"))
    both.request(random_ids(rng, 30, 2, 40))
    for rows in (11, 60, 200):
        generation = both.index.generation
        both.grow(rows)
        assert both.index.generation > generation
        assert both.index.rows == rows
        slots = both.request(random_ids(rng, rows // 2, 2))
        assert -1 not in slots
    assert both.index.counters()["rows"].sum() > 100


def test_a_full_index_without_eviction_grows_and_takes_more() -> None:
    rng = np.random.default_rng(1)
    both = Both(1, 64)
    ids = random_ids(rng, 100)
    assert both.request(ids).count(-1) == 36
    both.grow(100)
    assert both.request(ids).count(-1) == 0


def test_rows_without_a_place_are_counted_and_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(1, 200)
    both.request(random_ids(np.random.default_rng(2), 200))
    monkeypatch.setattr(host, "LARGEST_LOAD", 1.2)
    with pytest.raises(StoreError, match=r"no place for \d+ of the present ones"):
        both.index.grow(210)
    both.compare()
    assert both.index.rows == 200
    with pytest.raises(StoreError, match="grows to at most"):
        both.index.grow(199)
