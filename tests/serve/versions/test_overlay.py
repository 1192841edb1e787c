"""Rows of an overlay are read as if they were in the store: before, while and after they are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from satrap.exchange.local import LocalExchange
from satrap.optim import SGD, Adam
from satrap.schema import Table
from satrap.serve.versions import overlay as module
from satrap.store import Eviction, Shard, Tier
from tests.serve.changes import CHANGES, TABLES, changed, chunk, read


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLDED_ROWS", 3)


@settings(max_examples=60, deadline=None)
@given(before=CHANGES, changes=CHANGES)
def test_what_is_read_is_the_same_at_each_moment(before: Any, changes: Any) -> None:
    exchange = LocalExchange(Shard([Table(name, dim=2, optimizer=SGD(lr=1.0)) for name in TABLES], seed=3))
    for table, _, ids, value in before:
        exchange.shard.load(table, chunk(table, ids, value))
    over, wanted = changed(exchange, changes)
    more = True
    while more:
        for table, rows in read(exchange, over).items():
            assert np.array_equal(rows, wanted[table])
        more = over.fold()
    for table, rows in read(exchange, None).items():
        assert np.array_equal(rows, wanted[table])
    had = {(t, id_) for t, _, ids, _ in before for id_ in ids}
    for table, remove, ids, _ in changes:
        had = had - {(table, id_) for id_ in ids} if remove else had | {(table, id_) for id_ in ids}
    assert exchange.shard.statistics().rows == len(had)  # what was removed takes no memory
    over.close()
    exchange.close()


def test_rows_with_optimizer_state_and_those_of_a_tier(tmp_path: Any) -> None:
    tier = Tier(str(tmp_path), size=1 << 20)
    tables = [Table(name, dim=2, optimizer=Adam(lr=1.0)) for name in TABLES]
    exchange = LocalExchange(Shard(tables, seed=3, memory=4_000_000, eviction=Eviction("lru"), tier=tier))
    exchange.shard.load("a", chunk("a", [1, 2, 3, 4], 5, width=5))
    over, wanted = changed(exchange, [("a", False, [2, 9], 7), ("a", True, [3, 4], 0), ("b", False, [1], 2)])
    while over.fold():
        pass
    found = read(exchange, None)
    assert all(np.array_equal(found[table], wanted[table]) for table in TABLES)
    over.close()
    exchange.close()


def test_rows_that_come_once_are_written_from_where_they_were_read() -> None:
    """Copies of a million rows take longer than all else of an update."""
    exchange = LocalExchange(Shard([Table(name, dim=2, optimizer=SGD(lr=1.0)) for name in TABLES], seed=3))
    exchange.shard.load("b", chunk("b", [7, 8], 1))
    once = chunk("a", [1, 2, 3, 4, 5], 5)
    for again in (False, True):
        over = module.Overlay(exchange.shard)
        over.load(once)
        over.remove("b", np.array([7], np.uint64))
        over.load(chunk("b", [8], 2))
        if again:
            over.load(chunk("b", [8], 3))
        over.seal()
        pieces = [piece for piece, _ in over._pieces if piece.table == "a"]
        assert [np.shares_memory(piece.weights, once.weights) for piece in pieces] == [not again] * 2
        assert sum(len(gone) for _, gone in over._pieces) == 1
        while over.fold():
            pass
        over.close()
    exchange.close()
