"""From a batch to pooled embeddings and back: against a loop over samples in NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import satrap
from satrap.batch import Batch, JaggedRows
from satrap.embedding import EmbeddingPlan, Embeddings, tables_of
from satrap.embedding.pooling import Bag, _torch_pool, merge_runs, pool_features
from satrap.errors import ConfigError
from satrap.optim import SGD
from satrap.store import Shard
from tests.support.examples import examples

MODES = ("sum", "mean", "sqrtn", "max")


def reference(rows: np.ndarray, bag: Bag, upstream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pooled rows and the gradient of the rows, sample by sample in float64."""
    bounds = np.arange(len(bag.inverse) + 1) if bag.offsets is None else bag.offsets
    out = np.zeros((len(bounds) - 1, rows.shape[1]))
    grad = np.zeros(rows.shape)
    for sample, (start, stop) in enumerate(itertools.pairwise(bounds)):
        index = bag.inverse[start:stop]
        if not len(index):
            continue
        chosen = rows[index].astype(np.float64)
        weights = np.ones(len(index)) if bag.weights is None else bag.weights[start:stop].astype(np.float64)
        if bag.mode == "max":
            out[sample] = chosen.max(axis=0)
            np.add.at(grad, (index[chosen.argmax(axis=0)], np.arange(rows.shape[1])), upstream[sample])
            continue
        divisor = {"sum": 1.0, "mean": weights.sum(), "sqrtn": np.sqrt((weights**2).sum())}[bag.mode]
        factor = weights / divisor
        out[sample] = (chosen * factor[:, None]).sum(axis=0)
        np.add.at(grad, index, factor[:, None] * upstream[sample])
    return out, grad


def make_bag(inverse: np.ndarray, *rest: Any) -> Bag:
    return Bag(inverse.astype(np.int32), 0, len(inverse), *rest)


@st.composite
def bags(draw: st.DrawFn) -> tuple[np.ndarray, list[Bag], int]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size, distinct = draw(st.integers(1, 9)), draw(st.integers(1, 12))
    dim = draw(st.sampled_from([1, 3, 8, 16, 17]))
    made = []
    for _ in range(draw(st.integers(1, 4))):
        mode = draw(st.sampled_from(MODES))
        if draw(st.booleans()):
            made.append(make_bag(rng.integers(0, distinct, size), None, None, mode))
            continue
        lengths = rng.integers(0, 5, size)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        total = int(offsets[-1])
        weights = (
            rng.random(total).astype(np.float32) + 0.1 if mode != "max" and draw(st.booleans()) else None
        )
        made.append(make_bag(rng.integers(0, distinct, total), offsets, weights, mode))
    return rng.standard_normal((distinct, dim)).astype(np.float32), made, size


@settings(max_examples=examples(60), deadline=None)
@given(bags())
def test_pooling_equals_the_loop(case: tuple[np.ndarray, list[Bag], int]) -> None:
    rows, made, size = case
    leaf = torch.tensor(rows, requires_grad=True)
    block = pool_features(leaf, made)
    assert block.shape == (size, len(made), rows.shape[1])
    upstream = np.random.default_rng(0).standard_normal(block.shape).astype(np.float32)
    block.backward(torch.tensor(upstream))
    gradient = np.zeros(rows.shape)
    for number, bag in enumerate(made):
        expected, part = reference(rows, bag, upstream[:, number])
        np.testing.assert_allclose(block[:, number].detach().numpy(), expected, atol=2e-6)
        gradient += part
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), gradient, rtol=1e-6, atol=5e-6)


@settings(max_examples=examples(60), deadline=None)
@given(bags())
def test_both_implementations_agree(case: tuple[np.ndarray, list[Bag], int]) -> None:
    """Sums in different orders differ the more, the larger the numbers are that cancel."""
    rows, made, size = case
    upstream = np.random.default_rng(0).standard_normal((size, len(made), rows.shape[1])).astype(np.float32)
    terms = np.zeros(rows.shape)
    for number, bag in enumerate(made):
        terms += reference(rows, bag, np.abs(upstream[:, number]))[1]
    results = []
    for pooled in (pool_features, lambda leaf, bags: torch.cat([_torch_pool(leaf, b) for b in bags], dim=1)):
        leaf = torch.tensor(rows, requires_grad=True)
        block = pooled(leaf, made)
        block.backward(torch.tensor(upstream))
        assert leaf.grad is not None
        results.append((block.detach().numpy(), leaf.grad.numpy()))
    (blocks, gradients), (other_blocks, other_gradients) = results
    np.testing.assert_allclose(blocks, other_blocks, rtol=1e-6, atol=5e-6)
    assert (np.abs(gradients - other_gradients) <= 1e-6 * (1 + terms)).all()


def test_runs_of_plain_features_are_one_bag() -> None:
    inverses = np.array([0, 1, 1, 0, 2, 2], np.int32)
    offsets = np.array([0, 1, 2])
    parts = [Bag(inverses, 0, 2), Bag(inverses, 2, 4), Bag(inverses, 4, 6, offsets)]
    merged = merge_runs(parts)
    assert [(b.start, b.stop, b.features) for b in merged] == [(0, 4, 2), (4, 6, 1)]
    rows = torch.arange(6.0).view(3, 2)
    torch.testing.assert_close(pool_features(rows, merged), pool_features(rows, parts))
    again = merge_runs([parts[2], *parts[:2], Bag(inverses, 5, 6), Bag(inverses, 0, 2, None, np.ones(2))])
    assert [(b.start, b.stop, b.features) for b in again] == [(4, 6, 1), (0, 4, 2), (5, 6, 1), (0, 2, 1)]
    assert [b.size for b in merged] == [2, 2]
    assert merge_runs([Bag(inverses, 0, 3), Bag(inverses, 3, 6)])[0].size == 3


def make(schema: satrap.Schema) -> tuple[Shard, EmbeddingPlan, Embeddings]:
    shard = Shard(tables_of(schema, SGD(lr=1.0)), seed=3)
    plan = EmbeddingPlan(schema, shard.groups)
    return shard, plan, Embeddings(plan, torch.device("cpu"))


def test_shared_tables_groups_and_jagged_features() -> None:
    schema = satrap.Schema(
        labels=[],
        features={
            "seen": satrap.Categorical(dim=4, multi=True, table="item"),
            "small": satrap.Categorical(dim=2),
            "item": satrap.Categorical(dim=4),
            "history": satrap.Categorical(dim=4, multi=True, table="item", pooling="none"),
        },
    )
    shard, plan, embeddings = make(schema)
    batch = Batch(
        size=2,
        ids={
            "seen": satrap.Jagged(np.array([5, 6, 5], np.uint64), np.array([0, 3, 3])),
            "small": satrap.Jagged(np.array([5, 5], np.uint64)),
            "item": satrap.Jagged(np.array([6, 7], np.uint64)),
            "history": satrap.Jagged(np.array([7, 5], np.uint64), np.array([0, 0, 2])),
        },
    )
    ticket = plan.ticket(batch)
    assert sum(len(r.ids) for r in ticket.requests) == 4  # items 5, 6, 7 and small 5, each once
    rows = embeddings.rows([shard.lookup_group(r.group, r.ids, r.splits) for r in ticket.requests])
    embedded = embeddings.embed(ticket, rows)

    item = {i: torch.tensor(shard.peek("item", np.array([i], np.uint64))[0][0]) for i in (5, 6, 7)}
    torch.testing.assert_close(embedded["seen"], torch.stack([2 * item[5] + item[6], torch.zeros(4)]))
    torch.testing.assert_close(embedded["item"], torch.stack([item[6], item[7]]))
    history = embedded.embeddings["history"]
    assert isinstance(history, JaggedRows)
    torch.testing.assert_close(history.values, torch.stack([item[7], item[5]]))
    padded, mask = history.padded(3)
    assert mask.tolist() == [[False] * 3, [True, True, False]]
    torch.testing.assert_close(padded[1, :2], history.values)
    with pytest.raises(TypeError, match="pooling 'none'"):
        embedded["history"]
    assert embedded.flat().shape == (2, 4 + 2 + 4)

    (embedded["seen"].sum() + embedded["item"].sum() + history.values.sum()).backward()
    gradients = embeddings.gradients(rows)
    for request, gradient in zip(ticket.requests, gradients, strict=True):
        uses = {5: 3.0, 6: 2.0, 7: 2.0} if shard.groups[request.group].dim == 4 else {5: 0.0}
        assert {int(i): float(g[0]) for i, g in zip(request.ids, gradient, strict=True)} == uses


def test_features_of_a_sequence_share_offsets_and_numbers_stand_beside_them() -> None:
    def event(table: str) -> satrap.Categorical:
        return satrap.Categorical(dim=4, multi=True, pooling="none", sequence="past", table=table)

    features = {"user": satrap.Categorical(dim=4), "item": event("item"), "genre": event("genre")}
    schema = satrap.Schema(labels=[], features={**features, "paid": satrap.Numeric(sequence="past")})
    shard, plan, embeddings = make(schema)
    offsets = np.array([0, 2, 2, 3])
    ids = {
        "user": satrap.Jagged(np.arange(3, dtype=np.uint64)),
        "item": satrap.Jagged(np.array([7, 0, 7], np.uint64), offsets),
        "genre": satrap.Jagged(np.array([1, 2, 3], np.uint64), offsets.copy()),
    }
    paid = np.array([0.5, 1.5, 2.5], np.float32)
    batch = Batch(size=3, ids=ids, events={"paid": satrap.Jagged(paid, offsets.copy())})
    ticket = plan.ticket(batch)
    rows = embeddings.rows([shard.lookup_group(r.group, r.ids, r.splits) for r in ticket.requests])
    embedded = embeddings.embed(ticket, rows)
    items, genres = embedded.embeddings["item"], embedded.embeddings["genre"]
    assert isinstance(items, JaggedRows)
    assert isinstance(genres, JaggedRows)
    np.testing.assert_array_equal(
        items.values.detach().numpy(),
        shard.peek("item", ids["item"].values)[0],
        "missing events have rows, too",
    )
    numbers = embedded.events["paid"]
    assert items.offsets is genres.offsets is numbers.offsets
    assert numbers.values.tolist() == [[0.5], [1.5], [2.5]]
    part = numbers.samples(1, 3)
    assert (part.values.tolist(), part.offsets.tolist(), part.bounds().tolist()) == (
        [[2.5]],
        [0, 0, 1],
        [0, 0, 1],
    )


def test_stack_is_the_block_itself() -> None:
    schema = satrap.Schema(labels=[], features={n: satrap.Categorical(dim=4) for n in "ba"})
    shard, plan, embeddings = make(schema)
    ids = {n: satrap.Jagged(np.arange(3, dtype=np.uint64)) for n in "ab"}
    ticket = plan.ticket(Batch(size=3, ids=ids))
    rows = embeddings.rows([shard.lookup_group(r.group, r.ids, r.splits) for r in ticket.requests])
    embedded = embeddings.embed(ticket, rows)
    assert embedded.stack() is embedded.blocks[0][1]
    torch.testing.assert_close(embedded.stack()[:, 0], embedded["b"])


def test_features_that_share_a_table_keep_their_places_in_block_and_flat() -> None:
    tables = {"a": "x", "b": "y", "c": "x"}  # ids are asked for table by table: a, c, b
    schema = satrap.Schema(
        labels=[], features={n: satrap.Categorical(dim=4, table=t) for n, t in tables.items()}
    )
    shard, plan, embeddings = make(schema)
    ids = {n: np.array([i, i + 1], np.uint64) for i, n in enumerate(tables)}
    ticket = plan.ticket(Batch(size=2, ids={n: satrap.Jagged(values) for n, values in ids.items()}))
    rows = embeddings.rows([shard.lookup_group(r.group, r.ids, r.splits) for r in ticket.requests])
    embedded = embeddings.embed(ticket, rows)
    right = np.stack([shard.peek(tables[n], ids[n])[0] for n in tables], axis=1)
    np.testing.assert_array_equal(embedded.stack().detach().numpy(), right)
    np.testing.assert_array_equal(embedded.flat().detach().numpy(), right.reshape(2, -1))


def test_flat_is_the_stack_side_by_side_to_the_bit_with_the_same_gradients() -> None:
    kinds = {
        "a": {},
        "m": {"multi": True, "pooling": "mean"},
        "b": {},
        "c": {},
        "x": {"multi": True, "pooling": "max"},
    }
    features = {name: satrap.Categorical(dim=5, **kind) for name, kind in kinds.items()}
    schema = satrap.Schema(labels=[], features={**features, "n": satrap.Numeric(), "k": satrap.Numeric()})
    shard, plan, embeddings = make(schema)
    rng, size = np.random.default_rng(5), 7
    bounds = np.array([0, 2, 2, 5, 6, 9, 9, 12])
    ids = {
        name: satrap.Jagged(
            rng.integers(0, 6, 12 if kind else size).astype(np.uint64), bounds if kind else None
        )
        for name, kind in kinds.items()
    }
    batch = Batch(size=size, ids=ids, numeric=rng.random((size, 2), dtype=np.float32))
    upstream = torch.from_numpy(rng.standard_normal((size, 5 * 5 + 2)).astype(np.float32))
    ticket, found = plan.ticket(batch), []
    for whole in (True, False):
        rows = embeddings.rows([shard.lookup_group(r.group, r.ids, r.splits) for r in ticket.requests])
        embedded = embeddings.embed(ticket, rows)
        assert embedded.beside is not None
        flat = embedded.flat() if whole else torch.cat([embedded.stack().flatten(1), embedded.numeric], dim=1)
        flat.backward(upstream)
        found.append((flat.detach(), rows[0].grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][1].abs().max() > 0  # some rows are never the largest


def test_models_may_widen_rows_but_not_disagree() -> None:
    schema = satrap.Schema(
        labels=[],
        features={"a": satrap.Categorical(dim=4, table="t"), "b": satrap.Categorical(dim=4, table="t")},
    )
    [table] = tables_of(schema, SGD(lr=1.0), {"a": 5, "b": 5})
    assert table.dim == 5
    with pytest.raises(ConfigError, match="needs rows of width"):
        tables_of(schema, SGD(lr=1.0), {"a": 5})
