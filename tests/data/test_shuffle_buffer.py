"""Rows gathered from several pieces, against pieces that are joined first."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import satrap
from satrap.batch import Batch, Jagged
from satrap.data.batch_rows import concat_rows, take_rows
from satrap.data.shuffle_buffer import ShuffleBuffer
from satrap.embedding.plan import EmbeddingPlan, _joined
from satrap.exchange import TableGroup

SCHEMA = satrap.Schema(
    labels=["y"],
    features={
        "a": satrap.Categorical(dim=8),
        "wide": satrap.Categorical(dim=16),
        "b": satrap.Categorical(dim=8),
        "tags": satrap.Categorical(dim=8, multi=True),
        "again": satrap.Categorical(dim=8, table="a"),
        "n": satrap.Numeric(),
    },
)
GROUPS = [TableGroup(0, ("a", "b", "tags"), 8), TableGroup(1, ("wide",), 16)]


def piece(size: int, seed: int) -> Batch:
    random = np.random.default_rng(seed)
    offsets = np.append(0, np.cumsum(random.integers(0, 4, size)))
    ids = {name: Jagged(random.integers(0, 9, size, np.uint64)) for name in ("a", "wide", "b", "again")}
    ids["tags"] = Jagged(random.integers(0, 9, int(offsets[-1]), np.uint64), offsets)
    ordered = {name: ids[name] for name in SCHEMA.categorical}
    numeric = random.standard_normal((size, 1)).astype(np.float32)
    return Batch(size, ordered, numeric, random.random((size, 1), np.float32))


def assert_equal(one: Batch, other: Batch) -> None:
    assert (one.size, list(one.ids)) == (other.size, list(other.ids))
    for name, jagged in one.ids.items():
        np.testing.assert_array_equal(jagged.values, other.ids[name].values)
        np.testing.assert_equal(jagged.offsets, other.ids[name].offsets)
    np.testing.assert_array_equal(one.numeric, other.numeric)
    np.testing.assert_array_equal(one.labels, other.labels)


@settings(deadline=None)  # compiles
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
def test_rows_are_the_rows_of_the_joined_pieces(sizes: list[int], data: st.DataObject) -> None:
    parts = [piece(size, seed) for seed, size in enumerate(sizes)]
    whole, buffer = concat_rows(parts), ShuffleBuffer(parts, SCHEMA)
    indices = np.array(data.draw(st.lists(st.integers(0, whole.size - 1), max_size=20)), np.int64)
    assert buffer.size == whole.size
    assert_equal(buffer.take(indices), take_rows(whole, indices))


def test_a_lookup_reads_the_ids_of_a_group_in_place() -> None:
    batch = ShuffleBuffer([piece(6, 1), piece(3, 2)], SCHEMA).take(np.array([7, 0, 3]))
    side_by_side = [batch.ids[name].values for name in ("a", "again", "b", "wide")]
    joined = _joined(side_by_side)
    assert np.shares_memory(joined, side_by_side[0])
    np.testing.assert_array_equal(joined, np.concatenate(side_by_side))
    assert not np.shares_memory(_joined(side_by_side[::-1]), side_by_side[0])
    np.testing.assert_array_equal(_joined(side_by_side[::-1]), np.concatenate(side_by_side[::-1]))
    apart = Batch(
        3, {name: Jagged(jagged.values.copy(), jagged.offsets) for name, jagged in batch.ids.items()}
    )
    plan = EmbeddingPlan(SCHEMA, GROUPS)
    for one, other in zip(plan.ticket(batch).requests, plan.ticket(apart).requests, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.splits, other.splits)
