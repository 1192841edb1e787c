"""Rows that arrive in the order of their hash, as every export and checkpoint yields them."""

from __future__ import annotations

import numpy as np

from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Shard


def test_what_one_store_exports_another_loads() -> None:
    rows = 300_000
    ids = np.random.default_rng(0).integers(0, 2**63, rows, dtype=np.uint64)
    source, target = (Shard([Table("user", dim=1)], optimizer=SGD(lr=1.0), seed=3) for _ in range(2))
    source.lookup("user", ids)
    for chunk in source.export("user"):
        target.load("user", chunk)
    assert target.statistics()["rows"] == source.statistics()["rows"]
    np.testing.assert_array_equal(target.peek("user", ids)[0], source.peek("user", ids)[0])
    assert target.peek("user", ids)[1].all()
