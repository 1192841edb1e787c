"""The local exchange: order is the schedule, errors are not lost."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.checkpoint.files.storage import Storage
from satrap.errors import StoreError
from satrap.exchange import LocalExchange, LookupRequest
from satrap.exchange.protocol import SnapshotCut, StepVerdict
from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import Shard


@pytest.fixture
def exchange() -> LocalExchange:
    tables = [Table("a", dim=4), Table("b", dim=4), Table("c", dim=2)]
    made = LocalExchange(Shard(tables, seed=5, optimizer=SGD(lr=1.0)))
    yield made
    made.close()


def request(group: int, *ids: list[int]) -> LookupRequest:
    flat = np.array([i for part in ids for i in part], dtype=np.uint64)
    return LookupRequest(group, flat, np.cumsum([0, *(len(p) for p in ids)]).astype(np.int64))


def test_lookup_sees_exactly_the_updates_issued_before_it(exchange: LocalExchange) -> None:
    wanted = [request(0, [1, 2], [1]), request(1, [9])]
    start = exchange.lookup(wanted, create=True).result()
    lookups = []
    for step in range(50):
        lookups.append(exchange.lookup(wanted, create=True))
        exchange.apply(lookups[-1], [np.full_like(r, 0.5) for r in start], lr_scale=1.0 if step % 2 else 2.0)
    moved = 0.0
    for step, lookup in enumerate(lookups):
        for before, now in zip(start, lookup.result(), strict=True):
            np.testing.assert_allclose(now, before - moved, atol=1e-5)
        moved += 0.5 if step % 2 else 1.0


def test_same_id_in_two_tables_is_two_rows(exchange: LocalExchange) -> None:
    [rows] = exchange.lookup([request(0, [1], [1])], create=True).result()
    assert not np.array_equal(rows[0], rows[1])


def test_without_create_nothing_changes_and_rows_are_the_initial_ones(exchange: LocalExchange) -> None:
    wanted = [request(0, [3], [4])]
    [seen] = exchange.lookup(wanted, create=False).result()
    assert exchange.telemetry.statistics().rows == 0
    [created] = exchange.lookup(wanted, create=True).result()
    np.testing.assert_array_equal(seen, created)


def test_a_refused_update_is_raised_by_the_next_call(exchange: LocalExchange) -> None:
    wanted = [request(1, [9])]
    lookup = exchange.lookup(wanted, create=True)
    [rows] = lookup.result()
    exchange.apply(lookup, [np.full_like(rows, np.nan)], lr_scale=1.0)
    with pytest.raises(StoreError):
        exchange.flush()
    [after] = exchange.lookup(wanted, create=False).result()
    np.testing.assert_array_equal(after, rows)


def test_gradients_known_to_be_finite_are_not_looked_at(exchange: LocalExchange) -> None:
    wanted = [request(1, [9])]
    lookup = exchange.lookup(wanted, create=True)
    [rows] = lookup.result()
    exchange.apply(
        lookup, [np.full_like(rows, np.nan)], lr_scale=1.0, verdict=StepVerdict(True, lambda: True)
    )
    exchange.flush()
    assert np.isnan(exchange.lookup(wanted, create=False).result()[0]).all()
    assert exchange.telemetry.statistics().refused == 0


def test_snapshot_load_and_clear(exchange: LocalExchange) -> None:
    wanted = [request(0, [1, 2, 3], [1]), request(1, [5])]
    lookup = exchange.lookup(wanted, create=True)
    rows = lookup.result()
    exchange.apply(lookup, [np.ones_like(r) for r in rows], lr_scale=1.0)
    saved = list(exchange.rows.cut(still=True))
    assert {table: len(chunk.ids) for table, chunk in saved} == {"a": 3, "b": 1, "c": 1}
    exchange.rows.clear()
    assert exchange.telemetry.statistics().rows == 0
    for table, chunk in saved:
        exchange.rows.load(table, chunk)
    for before, now in zip(rows, exchange.lookup(wanted, create=False).result(), strict=True):
        np.testing.assert_allclose(now, before - 1.0)


def test_requests_are_counted(exchange: LocalExchange) -> None:
    lookup = exchange.lookup([request(0, [1, 2], [1])], create=True)
    gradients = [np.ones_like(rows) for rows in lookup.result()]
    exchange.lookup([request(0, [1, 7], [8]), request(1, [9])], create=False).result()
    exchange.apply(lookup, gradients, lr_scale=1.0)
    wrong = exchange.lookup([LookupRequest(0, np.array([1], np.uint64), np.array([0, 2, 1]))], create=True)
    with pytest.raises(StoreError):
        wrong.result()
    exchange.flush()
    traffic, statistics = exchange.telemetry.traffic(), exchange.telemetry.statistics()
    assert (traffic.lookups.count, traffic.pushes.count, traffic.waiting) == (3, 1, 0)
    assert (dict(traffic.own), dict(traffic.others)) == ({0: 1}, {0: 1})
    assert dict(statistics.peeked) == {"a": 2, "b": 1, "c": 1}
    assert dict(statistics.unseen) == {"a": 1, "b": 1, "c": 1}


def test_a_delta_that_could_not_be_kept_is_in_the_next_one(exchange: LocalExchange) -> None:
    storage = Storage("memory://deltas")

    def train(*ids: int) -> None:
        lookup = exchange.lookup([request(0, list(ids), [])], create=True)
        exchange.apply(lookup, [np.ones_like(rows) for rows in lookup.result()], lr_scale=1.0)

    def rows_of(cut: SnapshotCut, folder: str) -> int:
        return sum(entry.rows for entry in cut.write(storage, folder).values())

    train(1, 2)
    first = exchange.rows.cut(delta=False)
    assert (rows_of(first, "data-1"), first.deleted) == (2, None)
    train(1)
    lost = exchange.rows.cut(delta=True)
    assert lost.deleted is not None
    lost.put_back()
    train(3)
    assert rows_of(exchange.rows.cut(delta=True), "data-2") == 2
    assert rows_of(exchange.rows.cut(delta=True), "data-3") == 0
    assert rows_of(exchange.rows.cut(), "data-4") == 3
