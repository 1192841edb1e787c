"""What comes pooled is what sends less, and a model sees the same."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import satrap
from satrap.batch import Batch, Jagged
from satrap.embedding import EmbeddingPlan, Embeddings
from satrap.embedding.pooled import SharedPoolingPlan, bag_bytes, sends_less
from satrap.exchange.lookup import Bags
from satrap.exchange.protocol import Pooling, TableGroup
from satrap.exchange.servers import Wire
from satrap.exchange.wire.formats import CODES, to_wire, wire_bytes
from satrap.exchange.wire.sections import Section, pack
from satrap.rpc.wire.frames import size_of
from satrap.store import pool

SCHEMA = satrap.Schema(
    labels=["clicked"],
    features={
        "user": satrap.Categorical(dim=4),
        "seen": satrap.Categorical(dim=4, multi=True, pooling="mean", table="item"),
        "item": satrap.Categorical(dim=4),
        "tags": satrap.Categorical(dim=4, multi=True, pooling="sqrtn"),
        "last": satrap.Categorical(dim=4, multi=True, pooling="max"),
        "path": satrap.Categorical(dim=4, multi=True, pooling="none"),
    },
)
GROUPS = [TableGroup(0, ("user", "item", "tags", "last", "path"), 4)]
SIZE = 6


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    def single() -> Jagged:
        return Jagged(np.array(draw(st.lists(st.integers(0, 20), min_size=SIZE, max_size=SIZE)), np.uint64))

    def several() -> Jagged:
        lengths = draw(st.lists(st.integers(0, 9), min_size=SIZE, max_size=SIZE))
        ids = draw(st.lists(st.integers(0, 99), min_size=sum(lengths), max_size=sum(lengths)))
        weights = np.arange(len(ids), dtype=np.float32) if draw(st.booleans()) else None
        return Jagged(np.array(ids, np.uint64), np.cumsum([0, *lengths]).astype(np.int64), weights)

    features = SCHEMA.categorical.items()
    ids = {name: several() if feature.multi else single() for name, feature in features}
    return Batch(size=SIZE, ids=ids, numeric=None, labels=None)


@settings(deadline=None)
@given(batches(), st.sets(st.sampled_from(GROUPS[0].tables)))
def test_a_model_sees_the_same_whoever_pools(batch: Batch, tables: set[str]) -> None:
    pooling = Pooling("owner", frozenset(tables), partial(wire_bytes, Wire()))
    plain, shared = EmbeddingPlan(SCHEMA, GROUPS), SharedPoolingPlan(SCHEMA, GROUPS, pooling)
    whole, ticket = plain.ticket(batch), shared.ticket(batch)
    [request], [asked] = whole.requests, ticket.requests
    table = np.random.default_rng(3).standard_normal((len(request.ids), 4)).astype(np.float32)
    np.testing.assert_array_equal(asked.ids, request.ids)
    assert {GROUPS[0].tables[bag.table] for bag in asked.bags} <= tables - {"last", "path"}
    single = np.repeat(~asked.pooled, np.diff(asked.splits))
    vectors = [
        pool(table[asked.splits[b.table] :], b.inverse, b.offsets, mode=b.mode, weights=b.weights)[0]
        for b in asked.bags
    ]
    answer = np.concatenate([table[single], *vectors])
    assert len(answer) == asked.rows
    assert ticket.distinct_ratio == whole.distinct_ratio
    device = torch.device("cpu")
    mine, theirs = (
        Embeddings(plan, device).embed(own, [torch.from_numpy(rows)])
        for plan, own, rows in ((shared, ticket, answer), (plain, whole, table))
    )
    for name in SCHEMA.categorical:
        a, b = mine.embeddings[name], theirs.embeddings[name]
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            assert torch.equal(a, b)
        else:
            assert torch.equal(a.values, b.values)  # type: ignore[union-attr]
            assert torch.equal(a.offsets, b.offsets)  # type: ignore[union-attr]


@pytest.mark.parametrize("wire", [Wire(), Wire("float32", "float32"), Wire("int8", "int8")], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [4, 64])
@pytest.mark.parametrize("ids", [10, 40, 45, 60, 300])
def test_less_is_sent(ids: int, dim: int, weighted: bool, wire: Wire) -> None:
    """Against the bytes of real messages: ids and bags, rows or vectors, and their gradients."""
    offsets = np.arange(0, 41 * 9, 9).astype(np.int64)
    inverse = np.zeros(offsets[-1], np.int32)
    bag = Bags(0, inverse, offsets, inverse.astype(np.float32) if weighted else None, "sum")
    asked = np.array([0, ids]), np.arange(ids, dtype=np.uint64)
    one = np.ones((1, dim), np.float32)
    each = sum(to_wire(one, CODES[code]).nbytes for code in (wire.forward, wire.backward))
    rows, vectors = (
        size_of(pack([Section(0, *asked, bags=bags)])) + each * count
        for bags, count in (([], ids), ([bag], 40))
    )
    beside = bag_bytes(len(inverse), len(offsets), len(inverse) if weighted else 0)
    assert sends_less(ids, 40, wire_bytes(wire, dim), beside) == (
        vectors - 16 < rows
    )  # the head of a bag is not counted


def test_vectors_are_worth_their_bytes_only() -> None:
    assert bag_bytes(5, 3) == 4 * 5 + 8 * 3
    assert bag_bytes(5, 3, 7) == 4 * 5 + 8 * 3 + 4 * 7
    assert [sends_less(9, 4, 16, beside) for beside in (79, 80, 81)] == [True, False, False]
