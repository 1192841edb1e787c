"""What every exchange promises, in one suite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from satrap.checkpoint import Checkpoint, write_checkpoint
from satrap.errors import StoreError
from satrap.exchange import Exchange, Lookup
from satrap.exchange.states import COUNTS
from tests.contract.embedded import Embedded
from tests.contract.parties import (
    KINDS,
    assert_equal_contents,
    contents,
    local,
    marks,
    random_requests,
    request,
    train,
)

IN_TURN = ("local", "servers-2", "embedding-2", "mixed-4", "joined-2")


def test_groups_name_tables_in_the_order_of_splits(exchange: Exchange) -> None:
    assert [(g.index, g.tables, g.dim) for g in exchange.groups] == [(0, ("a", "b"), 4), (1, ("c",), 17)]


@pytest.mark.parametrize(
    ("exchange", "ahead"),
    [
        *(pytest.param(kind, 3, marks=marks(kind)) for kind in KINDS),
        *(
            pytest.param(kind, 0, marks=[pytest.mark.slow, *marks(kind)])
            for kind in KINDS
            if kind not in IN_TURN
        ),
        *((kind, 0) for kind in IN_TURN),
    ],
    indirect=["exchange"],
)
def test_rows_and_state_are_those_of_one_store_to_the_bit(exchange: Exchange, ahead: int) -> None:
    other = local()
    for mine, theirs in zip(
        train(exchange, steps=12, seed=5, ahead=ahead),
        train(other, steps=12, seed=5, ahead=ahead),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert_equal_contents(exchange, other)
    other.close()


def test_a_lookup_sees_exactly_the_updates_issued_before_it(exchange: Exchange) -> None:
    wanted = [request(0, [1, 2], [1])]
    lookups = [exchange.lookup(wanted, create=True)]
    for _ in range(12):
        exchange.apply(lookups[-1], [np.ones((3, 4), np.float32)], lr_scale=1.0)
        lookups.append(exchange.lookup(wanted, create=True))
    rows = [lookup.result()[0] for lookup in lookups]
    steps = np.diff(np.stack(rows), axis=0)
    # Adagrad with gradients 1: step n is lr / sqrt(n)
    expected = -0.1 / np.sqrt(np.arange(1, 13))[:, None, None]
    np.testing.assert_allclose(steps, np.broadcast_to(expected, steps.shape), rtol=1e-3)


def test_one_id_in_two_tables_is_two_rows(exchange: Exchange) -> None:
    [before] = exchange.lookup([request(0, [1], [1])], create=True).result()
    assert not np.array_equal(before[0], before[1])
    exchange.apply(Lookup([request(0, [1], [])]), [np.ones((1, 4), np.float32)], lr_scale=1.0)
    [after] = exchange.lookup([request(0, [1], [1])], create=True).result()
    assert not np.array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1], before[1])


def test_reading_without_create_changes_nothing(exchange: Exchange) -> None:
    wanted = [request(0, [3], [4]), request(1, [5])]
    peeked = exchange.lookup(wanted, create=False).result()
    assert exchange.telemetry.statistics().rows == 0
    for a, b in zip(peeked, exchange.lookup(wanted, create=True).result(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert exchange.telemetry.statistics().rows == 3


def test_an_update_of_an_id_without_a_row_is_dropped_alone(exchange: Exchange) -> None:
    exchange.lookup([request(0, [1, 3], [])], create=True).result()
    before = exchange.telemetry.statistics().tables["a"].dropped
    exchange.apply(Lookup([request(0, [1, 2, 3], [])]), [np.eye(3, 4, dtype=np.float32)], lr_scale=1.0)
    exchange.flush()
    assert exchange.telemetry.statistics().tables["a"].dropped == before + 1
    ids, _, state = contents(exchange)["a"]
    by_id = dict(zip(ids.tolist(), state, strict=True))
    np.testing.assert_array_equal(by_id[1], [1, 0, 0, 0])
    np.testing.assert_array_equal(by_id[3], [0, 0, 1, 0])


def seen_by_a_shard(exchange: Exchange) -> int:
    """How many updates that are not finite a shard sees: before an embedding worker, the client refuses."""
    return 0 if isinstance(exchange, Embedded) else 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_refused_update_surfaces_at_the_next_call_and_changes_nothing(
    exchange: Exchange, value: float
) -> None:
    wanted = [request(0, list(range(40)), [])]
    lookup = exchange.lookup(wanted, create=True)
    [rows] = lookup.result()
    gradients = np.ones_like(rows)
    gradients[7, 2] = value
    refused = exchange.telemetry.statistics().refused
    exchange.apply(lookup, [gradients], lr_scale=1.0)
    with pytest.raises(StoreError, match="NaN or infinite"):
        exchange.flush()
    with pytest.raises(StoreError, match="NaN or infinite"):
        exchange.apply(lookup, [np.ones_like(rows)], lr_scale=1.0)
    [after] = exchange.lookup(wanted, create=False).result()
    np.testing.assert_array_equal(after, rows)
    assert exchange.telemetry.statistics().refused == refused + seen_by_a_shard(exchange)


def test_bad_gradients_of_one_group_refuse_those_of_the_others(exchange: Exchange) -> None:
    wanted = [request(0, [1, 2], [3]), request(1, [4])]
    lookup = exchange.lookup(wanted, create=True)
    before = lookup.result()
    refused = exchange.telemetry.statistics().refused
    gradients = [np.ones_like(rows) for rows in before]
    gradients[1][0, 0] = np.nan
    exchange.apply(lookup, gradients, lr_scale=1.0)
    with pytest.raises(StoreError, match="NaN or infinite"):
        exchange.flush()
    for rows, after in zip(before, exchange.lookup(wanted, create=False).result(), strict=True):
        np.testing.assert_array_equal(after, rows)
    assert exchange.telemetry.statistics().refused == refused + seen_by_a_shard(exchange)


def test_a_wrong_request_is_a_store_error(exchange: Exchange) -> None:
    with pytest.raises(StoreError, match="group 7"):
        exchange.lookup([request(7, [1])], create=True).result()
    with pytest.raises(StoreError, match="splits must"):
        exchange.lookup([request(0, [1])], create=True).result()
    [rows] = exchange.lookup([request(0, [1], [])], create=True).result()
    assert rows.shape == (1, 4)


def test_empty_requests_are_answered(exchange: Exchange) -> None:
    assert exchange.lookup([], create=True).result() == []
    [rows] = exchange.lookup([request(0, [], [])], create=True).result()
    assert rows.shape == (0, 4)
    exchange.apply(Lookup(()), [], lr_scale=1.0)
    exchange.flush()


def test_flush_waits_for_every_update(exchange: Exchange) -> None:
    wanted = [request(1, list(range(200)))]
    [before] = exchange.lookup(wanted, create=True).result()
    for _ in range(70):  # more than may be in flight
        exchange.apply(Lookup(wanted), [np.ones_like(before)], lr_scale=1.0)
    exchange.flush()
    assert exchange.telemetry.traffic().pushes.in_flight == 0
    assert (contents(exchange)["c"][2] == 70).all()


def keep_busy(exchange: Exchange) -> None:
    """Look up 500 rows of table c 20 times, issue as many updates, and wait for none of them."""
    wanted = [request(1, list(range(500)))]
    lookups = [exchange.lookup(wanted, create=True) for _ in range(20)]
    for lookup in lookups:
        lookup.result()
    for lookup in lookups:
        exchange.apply(lookup, [np.ones((500, 17), np.float32)], lr_scale=1.0)


def test_a_snapshot_holds_every_update_issued_before(exchange: Exchange) -> None:
    keep_busy(exchange)
    assert (contents(exchange)["c"][2] == 20).all()


def test_a_cut_holds_every_update_issued_before(exchange: Exchange, tmp_path: Path) -> None:
    keep_busy(exchange)
    cut = exchange.rows.cut()
    write_checkpoint(str(tmp_path), Checkpoint({}, {}, {}, (), rows=cut.write))
    other = local()
    other.rows.read(str(tmp_path))
    assert (contents(other)["c"][2] == 20).all()
    other.close()


def test_an_exchange_that_was_cleared_stays_empty(exchange: Exchange) -> None:
    wanted = [[request(1, list(range(first, first + 500)))] for first in range(0, 10_000, 500)]
    futures = [exchange.lookup(each, create=True) for each in wanted]
    exchange.rows.clear()
    for future in futures:
        future.result()
    assert exchange.telemetry.statistics().rows == 0


def test_snapshot_clear_and_load_restore_rows_and_state(exchange: Exchange) -> None:
    train(exchange, steps=10, seed=2)
    saved, before = list(exchange.rows.cut(still=True)), contents(exchange)
    exchange.rows.clear()
    assert exchange.telemetry.statistics().rows == 0
    for table, chunk in saved:
        exchange.rows.load(table, chunk)
    after = contents(exchange)
    assert sum(len(ids) for ids, _, _ in after.values()) == exchange.telemetry.statistics().rows > 100
    for table, columns in before.items():
        for x, y in zip(columns, after[table], strict=True):
            np.testing.assert_array_equal(x, y)


def test_rows_are_written_and_read(exchange: Exchange, tmp_path: Path) -> None:
    train(exchange, steps=10, seed=2)
    write_checkpoint(str(tmp_path), Checkpoint({}, {}, {}, (), rows=exchange.rows.cut(still=True).write))
    other = local()
    other.rows.read(str(tmp_path))
    assert_equal_contents(other, exchange)
    other.close()


def test_state_beside_the_rows_is_taken_over(exchange: Exchange, tmp_path: Path) -> None:
    train(exchange, steps=3, seed=2)
    cut = exchange.rows.cut()
    place, counts = str(tmp_path), cut.counts
    write_checkpoint(place, Checkpoint({COUNTS: counts}, {}, {}, (), rows=cut.write))
    train(exchange, steps=1, seed=3)
    assert any(counts[group] != later for group, later in exchange.rows.cut().counts.items())
    exchange.rows.clear()
    exchange.rows.read(place)
    assert exchange.rows.cut().counts != counts
    exchange.rows.read(place, exact=True)
    assert exchange.rows.cut().counts == counts


def test_a_bad_chunk_is_refused(exchange: Exchange) -> None:
    exchange.lookup([request(0, [1, 2], [1])], create=True).result()
    [(_, chunk), *_] = exchange.rows.cut(still=True)
    with pytest.raises(StoreError, match="no table 'z'"):
        exchange.rows.load("z", chunk)
    with pytest.raises(StoreError, match="weights must be"):
        exchange.rows.load("c", chunk)


def test_statistics_count_rows_and_uses(exchange: Exchange) -> None:
    first = exchange.telemetry.statistics()
    wanted = random_requests(np.random.default_rng(9))
    for _ in range(2):
        exchange.lookup(wanted, create=True).result()
    found = exchange.telemetry.statistics()
    total = sum(len(r.ids) for r in wanted)
    assert found.rows == total
    for counter in ("hits", "misses", "created"):
        assert (
            sum(getattr(t, counter) for t in found.tables.values())
            - sum(getattr(t, counter) for t in first.tables.values())
            == total
        )
    assert found.bytes > 0
