"""Weights and state of rows in one pass."""

import numpy as np
import pytest

from satrap.optim import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
from satrap.schema import Table
from satrap.store import Shard


@pytest.mark.parametrize(
    "optimizer",
    [SGD(lr=0.1), Adagrad(lr=0.1), RowWiseAdagrad(lr=0.1), Adam(lr=0.1), FTRL(lr=0.1)],
    ids=lambda o: type(o).__name__,
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [1, 5, 16, 33])
def test_rows_are_those_of_the_slab(optimizer, dtype, dim):
    """Against the slab's bytes, taken apart with NumPy."""
    store = Shard([Table("a", dim=dim, optimizer=optimizer, dtype=dtype)], seed=3, threads=1)
    ids = np.arange(1, 40, dtype=np.uint64)
    store.lookup("a", ids)
    store.update("a", ids, np.random.default_rng(0).standard_normal((39, dim)).astype(np.float32))
    group = store.groups[0]
    stride, plan = group.plan.stride, group.plan
    slab = group.backend.slab.bytes[: 39 * stride].reshape(39, stride)
    state = slab[:, stride - 4 * plan.layout.state :].copy().view(np.float32)
    if plan.layout.scalar:
        state = np.append(state, group.backend.slab.scalars[:39, None], axis=1)
    raw = slab[:, : dim * (4 if dtype == "float32" else 2)].copy()
    weights = (
        raw.view(np.float32)
        if dtype == "float32"
        else (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    )
    slots = np.array([38, 0, -1, 7, 7], np.int32)
    there = slots >= 0
    got_weights, got_state = group.backend.slab.read(slots)
    np.testing.assert_array_equal(got_weights[there], weights[slots[there]])
    np.testing.assert_array_equal(got_state[there], state[slots[there]])
    assert got_state.shape == (5, plan.width)
