"""What a plan costs: no more than in proportion to the features."""

import sys
from typing import Any

import numpy as np
import torch

import satrap
from satrap import Batch, Categorical, Schema
from satrap.batch import Jagged
from satrap.embedding import embeddings_of, tables_of
from satrap.embedding.workers.plan import PooledPlan
from satrap.exchange import LocalExchange, TableGroup
from satrap.store import Shard


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
