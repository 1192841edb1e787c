"""Rows that are not used for long, against the sequential model."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.retention import Eviction
from satrap.store.gpu import index as host
from tests.store.gpu.both import Both, random_ids

pytestmark = pytest.mark.triton


@pytest.mark.parametrize(("ttl", "protected"), [(1, 0), (3, 0), (9, 0), (2, 5)])
def test_rows_expire(ttl: int, protected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_SWEPT", 64)
    rng = np.random.default_rng(ttl)
    both = Both(3, 300, Eviction("ttl", ttl=ttl), protected=protected)
    for _ in range(ttl + 6):
        both.request(random_ids(rng, 30, 3, 200))
    assert both.index.counters()["evicted"].sum() > 20


def test_no_more_rows_expire_than_their_slots_and_the_log_have_room_for() -> None:
    both = Both(1, 400, Eviction("ttl", ttl=1))
    both.request(random_ids(np.random.default_rng(0), 400))
    for _ in range(8):
        both.request([(0, 1)])
    assert len(both.model.free) == both.model.free_limit
    both.request(random_ids(np.random.default_rng(1), 300))
    both.request(random_ids(np.random.default_rng(2), 10))
