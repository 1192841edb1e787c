"""The order of requests in memory that is used again."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.store.gpu.order import Order, blocks
from tests.store.gpu.both import DEVICE, on_device, random_ids

pytestmark = pytest.mark.triton


def test_blocks_cover() -> None:
    assert [blocks(n, 4) for n in (0, 1, 4, 5, 8)] == [1, 1, 1, 2, 2]


def test_requests_use_memory_again() -> None:
    rng = np.random.default_rng(0)
    order = Order(["a", "b"], 300, DEVICE)
    seen = set()
    for n in (300, 0, 17, 299):
        request = random_ids(rng, n, 2, 50)
        distinct = order.distinct(*on_device(request, 2, 300))
        assert distinct.capacity == 300
        runs = int(distinct.runs)
        tables = distinct.tables[:runs].tolist()
        ids = distinct.ids[:runs].cpu().numpy().view(np.uint64).tolist()
        assert set(zip(tables, ids, strict=True)) == set(request)
        assert int(distinct.starts[runs]) == n
        seen.add(tuple(tensor.data_ptr() for tensor in distinct))
    assert len(seen) == 1
