"""`lookup_slots` straight into a block, against the two calls it replaces, on a store of its own."""

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.optim import RowWiseAdagrad
from satrap.schema import Table
from satrap.store import Admission, Eviction, Shard, distinct

FEATURES = 6
TABLES = ((0, 1), (2,), (3, 4, 5))
"""Which features share a table."""


def batch(rng, size, ids):
    values = rng.zipf(1.3, FEATURES * size).astype(np.uint64) % np.uint64(ids)
    splits = np.cumsum([0, *(len(features) * size for features in TABLES)])
    return distinct(values, splits)


def open_shard(dim, dtype, **arguments):
    tables = [Table(f"t{t}", dim=dim, dtype=dtype) for t in range(len(TABLES))]
    return Shard(tables, seed=2, optimizer=RowWiseAdagrad(lr=0.1), **arguments)


def content(shard):
    return [
        (chunk.table, chunk.ids.tobytes(), chunk.weights.tobytes(), chunk.state.tobytes())
        for chunk in shard.snapshot()
    ]


@pytest.mark.parametrize("aside", [1 << 30, 0], ids=["cached", "past the caches"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("dim", "size", "arguments"),
    [
        (16, 4096, {"threads": 1}),
        (16, 4096, {"threads": 2}),
        (3, 50, {}),
        (20, 50, {}),
        (64, 50, {}),
        (16, 50, {"admission": Admission(min_count=2)}),
        (64, 50, {"memory": 120_000, "eviction": Eviction("lru")}),
        (32, 1, {}),
    ],
    ids=str,
)
def test_it_gives_the_rows_and_the_store_of_a_lookup_and_a_gather(
    monkeypatch, dim, size, arguments, dtype, aside
):
    monkeypatch.setattr("satrap.store.kernels.batch.ASIDE", aside)
    fused, plain = open_shard(dim, dtype, **arguments), open_shard(dim, dtype, **arguments)
    rng = np.random.default_rng(4)
    for _ in range(5):
        ids, splits, inverse = batch(rng, size, 400)
        wide = np.full((size, FEATURES + 2, dim), np.nan, np.float32)
        out = wide[:, 1:-1] if dim % 16 else None
        block, slots = fused.lookup_slots(0, ids, splits, out, inverse=inverse, features=FEATURES)
        rows, known = plain.lookup_slots(0, ids, splits)
        right = rows[inverse].reshape(FEATURES, size, dim).transpose(1, 0, 2)
        assert block.tobytes() == np.ascontiguousarray(right).tobytes()
        if out is not None:
            assert np.isnan(wide[:, [0, -1]]).all(), "nothing beside the block is written"
        gradients = rng.standard_normal((len(ids), dim), dtype=np.float32)
        fused.update_group(0, ids, splits, gradients, slots=slots)
        plain.update_group(0, ids, splits, gradients, slots=known)
    assert content(fused) == content(plain)
    assert fused.statistics() == plain.statistics()


def test_requests_that_do_not_fit_change_nothing():
    shard = open_shard(4, "float32")
    ids, splits = np.arange(3, dtype=np.uint64), np.array([0, 3, 3, 3])
    inverse = np.array([0, 1, 2, 0], np.int32)
    for wrong, features, out in (
        (np.array([0, 3], np.int32), 1, None),
        (np.array([0, -1], np.int32), 1, None),
        (inverse, 3, None),
        (inverse, 0, None),
        (inverse, 2, np.zeros((2, 2, 5), np.float32)),
        (inverse.astype(np.int64), 2, None),
    ):
        with pytest.raises(StoreError):
            shard.lookup_slots(0, ids, splits, out, inverse=wrong, features=features)
    assert shard.statistics().rows == 0
    block, _ = shard.lookup_slots(0, ids, splits, inverse=inverse[:0], features=2)
    assert block.shape == (0, 2, 4)
    assert shard.statistics().rows == 3
