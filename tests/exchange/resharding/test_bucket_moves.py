"""Buckets move between shards while a client trains: no row is lost, no update applied twice."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from satrap.checkpoint import Checkpoint, Series
from satrap.errors import ExchangeError, SatrapError, StoreError
from satrap.exchange import LocalExchange, LookupRequest
from satrap.exchange.servers import ServersExchange, ShardServer
from satrap.optim import Adagrad
from satrap.rpc.wire.frames import MessageKind
from satrap.schema import Table
from satrap.store import BUCKETS
from tests import faults
from tests.contract.parties import (
    assert_equal_contents,
    connect,
    contents,
    gradients_for,
    local,
    random_requests,
    request,
    threads,
    train,
)
from tests.exchange.servers.moving import move, scattered
from tests.support.examples import THOROUGH


def test_training_goes_on_over_two_three_and_two_shards_as_if_no_row_had_moved() -> None:
    with threads(3) as servers:
        addresses = [server.address for server in servers]
        exchange, reference = connect(addresses[:2]), local()
        for step, (members, joining) in enumerate((([0, 1, 2], {2: addresses[2]}), ([0, 2], {}))):
            mine, theirs = (train(each, steps=12, seed=step, ahead=3) for each in (exchange, reference))
            for a, b in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(a, b)
            new = exchange.map.after(scattered(members, step), members)
            assert move([exchange], new, joining) > 100
            assert_equal_contents(exchange, reference)
        mine, theirs = (train(each, steps=12, seed=9, ahead=3) for each in (exchange, reference))
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
        assert_equal_contents(exchange, reference)
        assert [one.shard for one in exchange.telemetry.statistics().shards] == [0, 2]
        assert servers[1].service.members.formats == {}  # everybody has said goodbye
        exchange.close()
        reference.close()


def trained_alike(exchange: ServersExchange, reference: LocalExchange, seed: int) -> None:
    mine, theirs = (train(each, steps=3, seed=seed, ahead=1) for each in (exchange, reference))
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.cluster
@settings(max_examples=6 if THOROUGH else 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    wanted=st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=5), seed=st.integers(0, 99)
)
@example(wanted=[{0, 1}, {1}, {0, 1, 2}], seed=0)  # number 0 is used again
def test_any_moves_leave_the_rows_of_a_store_that_never_moved(
    wanted: list[set[int]], seed: int, four: list[ShardServer]
) -> None:
    """Shards join and leave; numbers are used again; buckets are dealt by chance."""
    free = [server.address for server in four]
    first, reference = free.pop(), local()
    exchange, at = connect([first], run=secrets.token_hex(4)), {0: first}
    for n, numbers in enumerate(wanted):
        trained_alike(exchange, reference, seed + n)
        joining = {number: free.pop() for number in sorted(numbers - at.keys()) if free}
        members = sorted((numbers & at.keys()) | joining.keys()) or sorted(at)
        move([exchange], exchange.map.after(scattered(members, seed + n), members), joining)
        at = {number: address for number, address in (at | joining).items() if number in members}
        assert_equal_contents(exchange, reference)
    trained_alike(exchange, reference, seed + 50)
    assert_equal_contents(exchange, reference)
    exchange.close()
    reference.close()


@pytest.fixture(scope="module")
def four() -> Iterator[list[ShardServer]]:
    with threads(4) as servers:
        yield servers


def test_lookups_in_flight_are_updated_at_the_new_owners() -> None:
    """As in `hybrid`: three lookups wait for their updates while their rows move."""
    with threads(2) as servers:
        exchange, reference = connect([servers[0].address]), local()
        rng = np.random.default_rng(3)
        work = [(w, gradients_for(rng, w)) for w in (random_requests(rng) for _ in range(3))]
        for each in (exchange, reference):
            flying = [each.lookup(wanted, create=True) for wanted, _ in work]
            if each is exchange:
                new = exchange.map.after(scattered([0, 1], 1), [0, 1])
                move([exchange], new, {1: servers[1].address})
            for lookup, (_, gradients) in zip(flying, work, strict=True):
                each.apply(lookup, gradients, lr_scale=1.0)
            each.flush()
        assert_equal_contents(exchange, reference)
        exchange.close()
        reference.close()


@pytest.mark.parametrize("world", [1, 2])
def test_sync_with_moves_ends_with_the_bytes_of_a_run_without(world: int) -> None:
    """16-bit rows, too, whose rounding is chance: a new shard goes on from the others' counters."""
    tables = [Table("a", dim=4, optimizer=Adagrad(lr=0.1), dtype="bfloat16")]
    ids = np.arange(500, dtype=np.uint64)
    ends = []
    for moves in (False, True):
        with threads(3) as servers:
            addresses = [server.address for server in servers]
            exchanges = [
                connect(addresses[:2], tables=tables, mode="sync", rank=rank, world=world)
                for rank in range(world)
            ]
            for step in range(9):
                if moves and step in (3, 6):
                    members = [0, 1, 2] if step == 3 else [1, 2]
                    new = exchanges[0].map.after(scattered(members, step), members)
                    move(exchanges, new, {2: addresses[2]} if step == 3 else {})
                for rank, exchange in enumerate(exchanges):
                    wanted = [
                        LookupRequest(0, ids[step + rank :: 3], np.array([0, len(ids[step + rank :: 3])]))
                    ]
                    rows = np.full((len(wanted[0].ids), 4), step + rank / 3, np.float32)
                    lookup = exchange.lookup(wanted, create=True)
                    lookup.result()
                    exchange.apply(lookup, [rows], lr_scale=1.0)
            for exchange in exchanges:
                exchange.flush()
            ends.append(contents(exchanges[0])["a"])
            for exchange in exchanges:
                exchange.close()
    for with_moves, without in zip(ends[1], ends[0], strict=True):
        assert with_moves.tobytes() == without.tobytes()


def saved(exchange: ServersExchange, series: Series, step: int) -> bool:
    """Write a snapshot; return whether it is a delta."""
    cut = exchange.rows.cut(delta=series.followable(step))
    series.write(step, Checkpoint({}, {}, {}, (), rows=cut.write, deleted=cut.deleted))
    return cut.deleted is not None


def test_the_snapshot_after_a_move_is_full_and_deltas_go_on_from_it(tmp_path: Path) -> None:
    """A delta must not say that moved rows are deleted, nor leave out those that have come."""
    series = Series(str(tmp_path), keep=9)
    with threads(2) as servers:
        exchange, reference = connect([server.address for server in servers]), local()
        deltas = []
        for step in range(1, 6):
            trained_alike(exchange, reference, step)
            if step == 3:
                new = exchange.map.after(np.arange(BUCKETS) // 700 % 2, [0, 1])
                assert move([exchange], new) > 50
            deltas.append(saved(exchange, series, step))
        assert deltas == [False, True, False, True, True]
        exchange.rows.clear()
        exchange.rows.read(series.place(5))
        assert_equal_contents(exchange, reference)
        exchange.close()
        alone = local()
        alone.rows.read(series.place(5))
        assert_equal_contents(alone, reference)
        reference.close()
        alone.close()


def test_a_move_that_fails_leaves_everything_as_it_was() -> None:
    """The rows of two shards do not fit into one."""
    with threads(3) as servers:
        addresses = [server.address for server in servers]
        exchange, reference = connect(addresses[:2], memory=1_000_000, shares=1), local()
        many = list(range(int(1.4 * servers[0].service.store.groups[0].directory.room)))
        for each in (exchange, reference):
            lookup = each.lookup([request(0, many, [])], create=True)
            each.apply(lookup, [np.ones((len(many), 4), np.float32)], lr_scale=1.0)
            each.flush()
        new = exchange.map.after(np.full(BUCKETS, 2, np.uint16), [2])
        exchange.moves.join(new, {2: addresses[2]})
        with pytest.raises(StoreError, match="no room"):
            exchange.moves.carry(new)
        exchange.moves.abandon(tidy=True)
        assert exchange.map.members == [0, 1]
        assert_equal_contents(exchange, reference)
        trained_alike(exchange, reference, 4)
        assert_equal_contents(exchange, reference)
        exchange.close()
        reference.close()


def test_a_request_of_the_map_before_is_refused_whole() -> None:
    """A worker that missed the move: its lookup is not answered by shards that own a part of it."""
    with threads(2) as servers:
        addresses = [server.address for server in servers]
        first, late = (connect(addresses, rank=rank, world=2) for rank in range(2))
        new = first.map.after(scattered([0, 1], 1), [0, 1])
        first.moves.carry(new)
        first.moves.adopt(new)
        with pytest.raises(ExchangeError, match="epoch 1 of the shard map, but the shard is at epoch 2"):
            late.lookup([request(0, list(range(100)), [])], create=True).result()
        assert first.telemetry.statistics().rows == 0
        for exchange in (first, late):
            with suppress(ExchangeError):
                exchange.close()


def test_a_question_of_another_thread_waits_until_its_client_has_the_map() -> None:
    with threads(2) as servers:
        addresses = [server.address for server in servers]
        first, second = (connect(addresses, rank=rank, world=2) for rank in range(2))
        new = first.map.after(scattered([0, 1], 1), [0, 1])
        first.moves.carry(new)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(second.telemetry.statistics)
            with pytest.raises(TimeoutError):
                asked.result(0.3)
            second.moves.adopt(new)
            assert asked.result(30).rows == 0
        first.moves.adopt(new)
        for exchange in (first, second):
            exchange.close()


def test_a_question_to_a_shard_that_is_being_left_fails_at_once_and_the_next_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with threads(2) as servers:
        exchange = connect([server.address for server in servers])
        new = exchange.map.after(np.zeros(BUCKETS, np.uint16), [0])
        exchange.moves.carry(new)
        asked: list[Future[Any]] = []
        leave = exchange._shards.leave

        def asked_between(*given: Any) -> None:
            """What another thread asks after the goodbye, and before the shard is forgotten."""
            asked.append(exchange._shards.ask(1, MessageKind.STATISTICS))
            leave(*given)

        monkeypatch.setattr(exchange._shards, "leave", asked_between)
        exchange.moves.adopt(new)
        with pytest.raises(ExchangeError, match=r"shard 1 at .* accepts no more requests"):
            asked[0].result(20)
        assert len(exchange.telemetry.statistics().shards) == 1
        exchange.close()


def test_a_move_ends_with_an_error_once_the_exchange_has_ended() -> None:
    with threads(1) as servers:
        exchange = connect([servers[0].address], deadline=1.0)
    with pytest.raises(ExchangeError, match="has not responded for 1 s"):
        exchange.telemetry.statistics()
    with ThreadPoolExecutor(1) as pool, pytest.raises(ExchangeError, match="has not responded for 1 s"):
        pool.submit(exchange.moves.adopt, exchange.map).result(20)
    exchange.close()


class DiedError(Exception):
    """Rank 0 is killed."""


def die(_: str) -> None:
    raise DiedError


@pytest.mark.cluster
@pytest.mark.parametrize("next_map", ["before", "after"])
@pytest.mark.parametrize(
    ("point", "at"),
    [
        pytest.param("move.copied", 1, marks=pytest.mark.slow),
        pytest.param("move.mapped", 1, marks=pytest.mark.slow),
        ("move.mapped", 3),
    ],
)
def test_if_rank_0_dies_in_a_move_the_next_generation_loads_the_snapshot_under_either_map(
    tmp_path: Path, point: str, at: int, next_map: str
) -> None:
    """Shards are at different epochs then, and rows at two of them, or at the wrong one."""
    series, reference, run = Series(str(tmp_path)), local(), secrets.token_hex(4)
    with threads(3) as servers:
        addresses = [server.address for server in servers]
        first = connect(addresses[:2], run=run, deadline=3.0)
        trained_alike(first, reference, 1)
        saved(first, series, 1)
        train(first, steps=2, seed=2)  # lost with the first generation
        new = first.map.after(np.arange(BUCKETS) // 700 % 3, [0, 1, 2])
        first.moves.join(new, {2: addresses[2]})
        with faults.armed(point, die, at=at), pytest.raises(DiedError):
            first.moves.carry(new)
        members, map = (addresses, new) if next_map == "after" else (addresses[:2], first.map)
        second = connect(members, run=run, generation=1, map=map)
        second.rows.read(series.place(1))
        assert_equal_contents(second, reference)
        trained_alike(second, reference, 3)
        assert_equal_contents(second, reference)
        with pytest.raises(SatrapError, match=r"newer group of workers|at epoch"):
            first.flush()
        first._shards._loop.stop()
        second.close()
        reference.close()
