"""What a plan asks for, and what it costs: no more than in proportion to the features."""

import sys
from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap import Batch, Categorical, Numeric, Schema, Table
from satrap.batch import Jagged
from satrap.embedding import EmbeddingPlan, embeddings_of, tables_of
from satrap.embedding.workers.plan import PooledPlan
from satrap.errors import ConfigError
from satrap.exchange import LocalExchange, TableGroup
from satrap.optim import SGD, Adagrad
from satrap.store import Admission, Eviction, Shard, StoreConfig, TableSettings


def schema_of(features: int) -> Schema:
    return Schema([], {f"f{i}": Categorical(dim=2, table=f"t{i % (features // 2)}") for i in range(features)})


def steps_of(features: int) -> int:
    """Return how many lines of Python it takes to plan a batch of that many features."""
    schema, lines = schema_of(features), 0

    def count(*_: Any) -> Any:
        nonlocal lines
        lines += 1
        return count

    ids = np.arange(3, dtype=np.uint64)
    batch = Batch(3, {name: Jagged(ids) for name in schema.features}, None, None, None, None, None)
    tables = tables_of(schema, satrap.optim.SGD(lr=0.1))
    exchange = LocalExchange(Shard(tables))
    before = sys.gettrace()
    sys.settrace(count)
    try:
        tables_of(schema, satrap.optim.SGD(lr=0.1))
        plan, embeddings = embeddings_of(exchange, schema, exchange.groups, torch.device("cpu"))
        ticket = plan.ticket(batch)
        embeddings.embed(ticket, [])
        PooledPlan(schema, [TableGroup(0, tuple(table.name for table in tables), 2)])
    finally:
        sys.settrace(before)
        exchange.close()
    return lines


def test_work_grows_with_the_number_of_features_and_no_faster() -> None:
    small, large = steps_of(100), steps_of(400)
    assert large < 5 * small


def test_tables_are_as_the_store_says_and_some_as_they_say_themselves() -> None:
    own = TableSettings(
        optimizer=Adagrad(lr=0.5),
        initial_scale=0.0,
        dtype="float16",
        memory=1 << 20,
        admission=Admission(min_count=3),
        eviction=Eviction("lru"),
    )
    store = StoreConfig(
        initial_scale=0.25, dtype="bfloat16", tables={"own": own, "kept": TableSettings(frozen=True)}
    )
    schema = Schema(
        [],
        {
            "b": Categorical(dim=3, table="shared"),
            "own": Categorical(dim=4),
            "a": Categorical(dim=3, table="shared"),
            "kept": Categorical(dim=5),
        },
    )
    assert tables_of(schema, SGD(lr=0.1), {"own": 6}, store) == [
        Table("shared", dim=3, optimizer=SGD(lr=0.1), initial_scale=0.25, dtype="bfloat16"),
        Table(
            "own",
            dim=6,
            optimizer=Adagrad(lr=0.5),
            initial_scale=0.0,
            dtype="float16",
            memory=1 << 20,
            admission=Admission(min_count=3),
            eviction=Eviction("lru"),
        ),
        Table("kept", dim=5, initial_scale=0.25, dtype="bfloat16", frozen=True),
    ]
    with pytest.raises(ConfigError) as raised:
        tables_of(schema, SGD(lr=0.1), store=StoreConfig(tables={"owns": own}))
    assert raised.value.what == "settings are given for table 'owns', which does not exist"
    assert raised.value.fix == "did you mean 'own'? tables: shared, own, kept"
    with pytest.raises(ConfigError) as raised:
        tables_of(schema, SGD(lr=0.1), {"a": 2})
    assert raised.value.what == "feature 'a' needs rows of width 2 in table 'shared', whose rows have width 3"


def test_each_group_asks_for_its_distinct_ids_by_table() -> None:
    names = {"a": "t", "b": "u", "c": "t", "d": "v"}
    schema = Schema([], {name: Categorical(dim=2, multi=True, table=table) for name, table in names.items()})
    groups = [TableGroup(0, ("u", "other", "t"), 2), TableGroup(3, ("v",), 2)]
    plan = EmbeddingPlan(schema, groups)
    assert [plan.features_of(0), plan.features_of(1)] == [("b", "a", "c"), ("d",)]
    one, two = np.array([7, 5], np.uint64), np.array([7, 7, 9], np.uint64)
    ids = {
        "a": Jagged(one),
        "b": Jagged(two, np.array([0, 1, 3])),
        "c": Jagged(one),
        "d": Jagged(np.array([4, 4], np.uint64)),
    }
    ticket = plan.ticket(Batch(2, ids, None, None, None, None, None))
    assert [request.group for request in ticket.requests] == [0, 3]
    assert [request.splits.tolist() for request in ticket.requests] == [[0, 2, 2, 4], [0, 1]]
    found = {
        name: ticket.requests[span.group].ids[ticket.inverses[span.group][span.start : span.stop]].tolist()
        for name, span in ticket.spans.items()
    }
    assert found == {"a": [7, 5], "b": [7, 7, 9], "c": [7, 5], "d": [4, 4]}
    assert ticket.plain == [False, True]
    assert ticket.distinct_ratio == 5 / 9
    assert plan.distinct(ticket) is ticket.requests
    ids["d"] = Jagged(ids["d"].values, weights=np.ones(2, np.float32))
    assert plan.ticket(Batch(2, ids, None, None, None, None, None)).plain == [False, False]
    ids["b"] = Jagged(one)
    assert plan.ticket(Batch(2, ids, None, None, None, None, None)).plain == [True, False]
    nothing = EmbeddingPlan(Schema([], {"x": Numeric()}), []).ticket(
        Batch(2, {}, np.zeros((2, 1), np.float32))
    )
    assert (nothing.distinct_ratio, nothing.requests) == (0.0, [])
