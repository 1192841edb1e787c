"""Samples in runs: the same input as of all samples one by one, and what is known of its columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from satrap.batch import Jagged, Runs, shared_of
from satrap.embedding import EmbeddingPlan, Embeddings, tables_of
from satrap.embedding.runs import RunEmbeddings
from satrap.exchange import LocalExchange
from satrap.optim import SGD
from satrap.schema import Categorical, Numeric, Schema, Vector
from satrap.store import Shard

FEATURES: dict[str, Any] = {
    "user": Categorical(dim=4),
    "item": Categorical(dim=4),
    "tags": Categorical(dim=4, multi=True, pooling="mean"),
    "seen": Categorical(dim=4, multi=True, pooling="max"),
    "price": Numeric(),
    "picture": Vector(dim=2),
    "age": Numeric(),
}
COUNTS = np.array([5, 1, 9])
NUMBERS = np.array([[True, False, False, True], [False, False, False, False], [True, True, True, True]])


def ids(random: np.random.Generator, size: int, multi: bool) -> Jagged:
    if not multi:
        return Jagged(random.integers(1, 30, size).astype(np.uint64))
    lengths = random.integers(0, 4, size)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
    values = random.integers(1, 30, offsets[-1]).astype(np.uint64)
    return Jagged(values, offsets, random.random(len(values)).astype(np.float32))


def runs_of(shared: set[str], numbers: Any) -> Runs:
    random = np.random.default_rng(len(shared))
    schema = Schema((), FEATURES)
    made = {
        name: ids(random, len(COUNTS) if name in shared else int(COUNTS.sum()), feature.multi)
        for name, feature in schema.categorical.items()
    }
    values = random.normal(size=(int(COUNTS.sum()), 4)).astype(np.float32)
    common = random.normal(size=(len(COUNTS), 4)).astype(np.float32)
    values[:, numbers] = np.repeat(common, COUNTS, axis=0)[:, numbers]
    return Runs(
        list(schema.categorical),
        COUNTS,
        {name: jagged for name, jagged in made.items() if name not in shared},
        {name: jagged for name, jagged in made.items() if name in shared},
        values,
        numbers,
    )


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize(
    "shared", [set(), {"user"}, {"user", "tags"}, {"item", "seen"}, set(["user", "item", "tags", "seen"])]
)
def test_the_input_is_that_of_all_samples(shared: set[str], numbers: Any) -> None:
    schema = Schema((), FEATURES)
    exchange = LocalExchange(Shard(tables_of(schema, SGD(lr=0.1))))
    plan = EmbeddingPlan(schema, exchange.groups)
    plain, embeddings = Embeddings(plan, torch.device("cpu")), None
    embeddings = RunEmbeddings(plan, plain)
    runs = runs_of(shared, numbers)
    ticket = plan.ticket(runs.expanded())
    wanted = plain.embed(ticket, plain.rows(exchange.lookup(ticket.requests, create=True).result()))
    asked = embeddings.ticket(runs)
    with torch.inference_mode():
        found = embeddings.embed(asked, exchange.peek(asked.lookups.requests))
        flat = found.flat()
        assert torch.equal(flat, wanted.flat())
        assert torch.equal(found.stack(), wanted.stack())
        for name in schema.categorical:
            assert torch.equal(found[name], wanted[name])
    assert torch.equal(found.numeric, wanted.numeric)
    assert found.source is not None
    for name, jagged in found.source.ids.items():
        np.testing.assert_array_equal(jagged.values, ticket.batch.ids[name].values)
    known = shared_of(flat)
    assert (known is None) == (not shared)
    if known is not None:
        np.testing.assert_array_equal(
            known.columns,
            np.append(np.repeat([name in shared for name in schema.categorical], 4), numbers),
        )
        assert torch.equal(known.own, flat[:, torch.from_numpy(~known.columns)])
        assert torch.equal(known.runs[known.run], flat[:, torch.from_numpy(known.columns)])
    exchange.close()


def test_short_runs_are_not_worth_it() -> None:
    schema = Schema((), {"user": Categorical(dim=4), "item": Categorical(dim=4)})
    exchange = LocalExchange(Shard(tables_of(schema, SGD(lr=0.1))))
    plan = EmbeddingPlan(schema, exchange.groups)
    embeddings = RunEmbeddings(plan, Embeddings(plan, torch.device("cpu")))
    for count, known in ((3, False), (4, True)):
        runs = Runs(
            ["user", "item"],
            np.array([count]),
            {"item": Jagged(np.arange(count, dtype=np.uint64))},
            {"user": Jagged(np.ones(1, np.uint64))},
            None,
            np.zeros(0, np.bool_),
        )
        asked = embeddings.ticket(runs)
        flat = embeddings.embed(asked, exchange.peek(asked.lookups.requests)).flat()
        assert (shared_of(flat) is not None) == known
    exchange.close()
