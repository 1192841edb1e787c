"""A position goes through its state, and the lookups in flight come back as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

import satrap
from satrap.embedding import EmbeddingPlan, tables_of
from satrap.errors import CheckpointError
from satrap.exchange import LocalExchange
from satrap.store import Shard
from satrap.train.position import Pending, Position
from satrap.train.turns import Turn
from tests.train.plain import Batches, make_batches, make_schema

SCHEMA = make_schema()
BATCHES = make_batches(9)


@pytest.fixture
def exchange() -> Iterator[LocalExchange]:
    made = LocalExchange(Shard(tables_of(SCHEMA, satrap.optim.SGD(lr=0.1)), seed=1))
    yield made
    made.close()


def issue(position: Position, plan: EmbeddingPlan, exchange: LocalExchange, count: int) -> None:
    """Train `count` batches, and leave two lookups in flight."""
    turns = [Turn(plan.ticket(b), 1.0, b.size) for b in position.reading.batches(Batches(BATCHES), 0)]
    for turn in turns[:count]:
        position.trained(turn)
    for seen, turn in enumerate(turns[count : count + 2]):
        assert turn.ticket is not None
        lookup = exchange.lookup(turn.ticket.requests, create=True)
        position.ahead.append((turn, Pending(lookup, seen)))


def test_what_was_in_flight_is_answered_with_the_rows_of_then(exchange: LocalExchange) -> None:
    plan = EmbeddingPlan(SCHEMA, exchange.groups)
    position = Position(0, 1)
    issue(position, plan, exchange, 3)
    plain, arrays = position.state(plan)
    expected = [[rows.copy() for rows in pending.lookup.result()] for _, pending in position.ahead if pending]
    for turn, pending in position.ahead:
        assert turn.ticket is not None
        assert pending is not None
        ones = [np.ones((len(r.ids), 8), np.float32) for r in turn.ticket.requests]
        exchange.update(pending.lookup, ones, lr_scale=1.0)
    exchange.flush()

    again = Position(0, 1)
    again.restore([json.loads(json.dumps(plain))], arrays)
    assert (again.epoch, again.amid_pass) == (0, True)
    left = list(again.reading.batches(Batches(BATCHES), 0))
    assert [id(batch) for batch in left] == [id(batch) for batch in BATCHES[3:]]
    for seen, batch in enumerate(left[:2]):
        assert again.replays
        found, updates = again.replayed(plan.ticket(batch).requests, 4)
        assert updates == seen
        for got, want in zip(found, expected[seen], strict=True):
            np.testing.assert_array_equal(got, want)
    assert not again.replays


def test_other_data_is_refused_with_the_step(exchange: LocalExchange) -> None:
    plan = EmbeddingPlan(SCHEMA, exchange.groups)
    position = Position(0, 1)
    issue(position, plan, exchange, 3)
    plain, arrays = position.state(plan)
    again = Position(0, 1)
    again.restore([plain], arrays)
    with pytest.raises(CheckpointError, match="the data is not what it was") as caught:
        again.replayed(plan.ticket(BATCHES[5]).requests, 4)
    assert caught.value.where == "step 4"


def test_with_other_workers_lookups_are_issued_anew(exchange: LocalExchange) -> None:
    plan = EmbeddingPlan(SCHEMA, exchange.groups)
    position = Position(0, 1)
    issue(position, plan, exchange, 2)
    plain, _ = position.state(plan)
    again = Position(1, 2)
    again.restore([plain], None)
    assert not again.replays


def test_a_pass_that_ended_is_not_amid() -> None:
    position = Position(0, 1)
    position.epoch_ended()
    plain, arrays = position.state(EmbeddingPlan(SCHEMA, ()))
    again = Position(0, 1)
    again.restore([plain], arrays)
    assert (again.epoch, again.amid_pass) == (1, False)
