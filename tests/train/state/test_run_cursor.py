"""A position goes through its state, and the lookups in flight come back as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import satrap
from satrap.embedding import EmbeddingPlan, tables_of
from satrap.errors import CheckpointError
from satrap.exchange import LocalExchange, LookupRequest
from satrap.store import Shard
from satrap.train.state.run_cursor import InFlightLookup, RunCursor
from satrap.train.step.agree import StepInput
from tests.train.plain import Batches, make_batches, make_schema

SCHEMA = make_schema()
BATCHES = make_batches(9)


@pytest.fixture
def exchange() -> Iterator[LocalExchange]:
    made = LocalExchange(Shard(tables_of(SCHEMA, satrap.optim.SGD(lr=0.1)), seed=1))
    yield made
    made.close()


def issue(position: RunCursor, plan: EmbeddingPlan, exchange: LocalExchange, count: int) -> None:
    """Train `count` batches, and leave two lookups in flight."""
    turns = [StepInput(plan.ticket(b), 1.0, b.size) for b in position.reading.batches(Batches(BATCHES), 0)]
    for turn in turns[:count]:
        position.trained(turn)
    for seen, turn in enumerate(turns[count : count + 2]):
        lookup = exchange.lookup(turn.ticket.requests, create=True)
        position.ahead.append((turn, InFlightLookup(lookup, seen)))


def test_what_was_in_flight_is_answered_with_the_rows_of_then(exchange: LocalExchange) -> None:
    plan = EmbeddingPlan(SCHEMA, exchange.groups)
    position = RunCursor(0, 1)
    issue(position, plan, exchange, 3)
    plain, arrays = position.state(plan)
    expected = [[rows.copy() for rows in pending.lookup.result()] for _, pending in position.ahead]
    for turn, pending in position.ahead:
        ones = [np.ones((len(r.ids), 8), np.float32) for r in turn.ticket.requests]
        exchange.apply(pending.lookup, ones, lr_scale=1.0)
    exchange.flush()

    again = RunCursor(0, 1)
    again.restore([json.loads(json.dumps(plain))], arrays)
    assert (again.epoch, again.amid_pass) == (0, True)
    left = list(again.reading.batches(Batches(BATCHES), 0))
    assert [id(batch) for batch in left] == [id(batch) for batch in BATCHES[3:]]
    for got, want in zip(again.replays, expected, strict=True):
        np.testing.assert_equal(got, want)
    for seen, batch in enumerate(left[:2]):
        assert again.replayed(plan.ticket(batch).requests, 4) == seen
    assert not again.replays


def test_other_data_is_refused_with_the_step(exchange: LocalExchange) -> None:
    plan = EmbeddingPlan(SCHEMA, exchange.groups)
    position = RunCursor(0, 1)
    issue(position, plan, exchange, 3)
    plain, arrays = position.state(plan)
    again = RunCursor(0, 1)
    again.restore([plain], arrays)
    with pytest.raises(CheckpointError, match="the data has changed since the snapshot") as caught:
        again.replayed(plan.ticket(BATCHES[5]).requests, 4)
    assert caught.value.where == "step 4"


def test_with_other_workers_lookups_are_issued_anew(exchange: LocalExchange) -> None:
    plan = EmbeddingPlan(SCHEMA, exchange.groups)
    position = RunCursor(0, 1)
    issue(position, plan, exchange, 2)
    plain, _ = position.state(plan)
    again = RunCursor(1, 2)
    again.restore([plain], None)
    assert not again.replays


def test_a_pass_that_ended_is_not_amid() -> None:
    position = RunCursor(0, 1)
    position.epoch_ended()
    plain, arrays = position.state(EmbeddingPlan(SCHEMA, ()))
    again = RunCursor(0, 1)
    again.restore([plain], arrays)
    assert (again.epoch, again.amid_pass) == (1, False)


def place(epoch: int, worker: int, *, workers: int = 2, done: int = 0, seen: int = 0) -> dict[str, Any]:
    stream = {"worker": worker, "workers": workers, "position": None, "done": done}
    return {"epoch": epoch, "streams": [stream], "in_flight": [seen]}


ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
ARRAYS = {"0.0.ids": np.array([0, 5], np.uint64), "0.0.rows": ROWS}


def wanted(*ids: int) -> list[LookupRequest]:
    return [LookupRequest(0, np.array(ids, np.uint64), np.array([0, len(ids)]))]


def test_each_worker_goes_on_from_its_own_place_or_all_from_the_first() -> None:
    states = [place(1, 0, seen=3), place(2, 1, seen=4)]
    own, anew = RunCursor(1, 2), RunCursor(1, 2)
    own.restore(states, ARRAYS)
    anew.restore(states, None)
    [[rows]] = own.replays
    assert (own.epoch, own.amid_pass, rows.tolist()) == (2, False, ROWS.tolist())
    assert (anew.epoch, anew.amid_pass, anew.replays) == (1, False, [])
    assert own.replayed(wanted(0, 5), 7) == 4
    anew.restore([place(1, 0), place(1, 1, done=1)], None)
    assert anew.amid_pass


@pytest.mark.parametrize(
    ("ids", "same"), [((9, 5), True), ((0, 5), True), ((9, 6), False), ((9,), False), ((9, 5, 7), False)]
)
def test_an_id_that_was_forgotten_may_be_any(ids: tuple[int, ...], same: bool) -> None:
    position = RunCursor(0, 1)
    position.restore([place(0, 0, workers=1)], ARRAYS | {"0.0.forgotten": np.array([0])})
    if same:
        assert position.replayed(wanted(*ids), 1) == 0
    else:
        with pytest.raises(CheckpointError, match="the data has changed since the snapshot"):
            position.replayed(wanted(*ids), 1)


def test_other_requests_than_those_in_flight_are_other_data() -> None:
    position = RunCursor(0, 1)
    position.restore([place(0, 0, workers=1)], ARRAYS)
    with pytest.raises(CheckpointError, match="the data has changed since the snapshot"):
        position.replayed(wanted(0, 5) + wanted(1), 1)
