"""Replicas at all workers beside shard servers: never stale, never sent, saved with the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap.checkpoint import Checkpoint, write_checkpoint
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.errors import ConfigError
from satrap.exchange import Lookup, LookupRequest
from satrap.exchange.collective import Placement
from satrap.exchange.servers.shard.gradient_barrier import WorkerGradients, merge
from satrap.exchange.states import COUNTS
from satrap.exchange.wrappers.replay import with_replays
from satrap.exchange.wrappers.routed import RoutedExchange
from satrap.optim import Adagrad
from satrap.schema import Table
from satrap.store import Eviction, RowChunk, StoreConfig
from tests.contract.parties import (
    SEED,
    TABLES,
    connect,
    contents,
    gradients_for,
    local,
    random_requests,
    request,
    threads,
)
from tests.exchange.collective.parties import Together, members, together
from tests.exchange.joining import connecting

STORE = StoreConfig(seed=SEED)
STEPS = 7


@contextmanager
def exchanges(ranks: int, **arguments: Any) -> Iterator[list[Any]]:
    """Yield the exchange of each rank; table c is replicated, a and b are at two shards."""
    with threads(2) as servers:
        make = connecting(
            [s.address for s in servers], ranks, store=STORE, **{"replicated": ["c"], **arguments}
        )
        made = together([lambda r=r: make(r, TABLES) for r in range(ranks)])  # type: ignore[misc]
        yield made
        together([one.close for one in made])


def batches(seed: int) -> list[tuple[list[LookupRequest], list[np.ndarray]]]:
    rng = np.random.default_rng(seed)
    wanted = [random_requests(rng, ids=80) for _ in range(STEPS)]
    return [(one, gradients_for(rng, one)) for one in wanted]


def run(exchange: RoutedExchange, work: Sequence[Any], ahead: int) -> list[list[np.ndarray]]:
    """Train with lookups so many steps ahead; return the rows of each step."""
    lookups, seen = [], []
    for step in range(STEPS + ahead):
        if step < STEPS:
            lookups.append(exchange.lookup(work[step][0], create=True))
        if step >= ahead:
            seen.append(lookups[step - ahead].result())
            exchange.apply(lookups[step - ahead], work[step - ahead][1], lr_scale=1.0)
    exchange.flush()
    return seen


def in_turn(works: Sequence[Any]) -> list[list[list[np.ndarray]]]:
    """Return, by rank and step, the rows of lookups that see every update of an earlier step."""
    reference, rows = local(), [list[Any]() for _ in works]
    for step in range(STEPS):
        for own, work in zip(rows, works, strict=True):
            own.append(reference.lookup(work[step][0], create=True).result())
        shares = [
            WorkerGradients(work[step][0], [g * np.float32(1 / len(works)) for g in work[step][1]], 1.0)
            for work in works
        ]
        merged = merge(shares)
        reference.apply(Lookup(merged.requests), merged.gradients, lr_scale=1.0)
    reference.close()
    return rows


@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize("ranks", [2, 3])
def test_replicas_are_never_stale_however_early_they_are_looked_up(ranks: int, ahead: int) -> None:
    works = [batches(seed) for seed in range(ranks)]
    with exchanges(ranks) as made:
        seen = together([lambda e=e, w=w: run(e, w, ahead) for e, w in zip(made, works, strict=True)])  # type: ignore[misc]
    stale = 0
    for own, expected in zip(seen, in_turn(works), strict=True):
        for found, wanted in zip(own, expected, strict=True):
            np.testing.assert_array_equal(found[1], wanted[1])
            stale += not np.array_equal(found[0], wanted[0])
    assert stale > STEPS  # those of the shards are


@pytest.mark.parametrize("ranks", [2, 3])
def test_in_sync_all_rows_are_those_after_every_earlier_step(ranks: int) -> None:
    works = [batches(seed) for seed in range(ranks)]
    with exchanges(ranks, mode="sync") as made:
        seen = together([lambda e=e, w=w: run(e, w, 0) for e, w in zip(made, works, strict=True)])  # type: ignore[misc]
    for own, expected in zip(seen, in_turn(works), strict=True):
        for found, wanted in zip(own, expected, strict=True):
            for x, y in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(x, y)


def test_of_lookups_in_flight_rows_of_replicas_are_given_as_they_are_and_looked_up_anew() -> None:
    wanted = [request(0, [1], [2]), request(1, [3])]
    with exchanges(2) as [one, other]:
        lookups = [one.lookup(wanted, create=True) for _ in range(2)]
        for _ in range(2):
            other.lookup([], create=True)
        early = [rows.copy() for rows in lookups[1].unpooled_rows()]  # does not wait for its turn
        assert not lookups[1].rows.done()
        one.apply(lookups[0], [np.ones((2, 4), np.float32), np.ones((1, 17), np.float32)], lr_scale=1.0)
        other.apply(Lookup(()), [], lr_scale=1.0)
        _, after = lookups[1].result(10)
        assert (after != early[1]).all()
        np.testing.assert_array_equal(lookups[1].unpooled_rows()[1], after)
        replayed = with_replays(one, [[np.full_like(rows, 7) for rows in early]])
        again = replayed.lookup(wanted, create=True)
        other.lookup([], create=True)
        for exchange in (one, other):
            exchange.apply(Lookup(()), [], lr_scale=1.0)
        known, fresh = again.result(10)
        assert (known == 7).all()
        np.testing.assert_array_equal(fresh, after)
        for exchange in (one, other):
            exchange.apply(Lookup(()), [], lr_scale=1.0)


def test_ranks_hear_of_batches_without_ids_of_replicas() -> None:
    with exchanges(2) as [one, other]:
        mine, theirs = one.lookup([request(0, [1], [2])], create=False), other.lookup([], create=False)
        assert [rows.shape for rows in mine.result(10)] == [(2, 4)]
        assert theirs.result(10) == []
        assert (mine.active, theirs.active) == (1, 1)


def test_rows_of_replicas_are_not_sent() -> None:
    wanted = [request(1, list(range(1000)))]
    with exchanges(2) as made:

        def look(exchange: RoutedExchange) -> int:
            exchange.lookup(wanted, create=True).result()
            exchange.apply(Lookup(()), [], lr_scale=1.0)
            exchange.flush()
            traffic = exchange.telemetry.traffic()
            return traffic.sent + traffic.received

        assert all(sent < 1000 * (2 * 8 + 17) for sent in together([lambda e=e: look(e) for e in made]))  # type: ignore[misc]


def written(exchange: Any, url: str, delta: bool) -> tuple[bool, set[str]]:
    """Write a cut; return whether it holds all rows, and its row files."""
    cut = exchange.rows.cut(delta=delta)
    write_checkpoint(url, Checkpoint({}, {}, {}, (), rows=cut.write))
    return cut.deleted is None, {n for n, e in read_manifest(Storage(url)).files.items() if e.table}


def test_a_delta_is_one_of_both_parts_or_of_none(tmp_path: Path) -> None:
    with exchanges(2, fresh=False) as made:
        both = Together(made)

        def add(number: int) -> None:
            wanted = [request(0, [number], []), request(1, [number])]
            both.lookup(wanted, create=True).result()

        def save(number: int) -> tuple[bool, set[str]]:
            add(number)
            return written(both, str(tmp_path / str(number)), True)

        add(0)
        made[0].servers.rows.cut(delta=False)  # now the shards know what changes, and the replicas do not
        full, files = save(1)
        assert full
        assert all(name.split(".")[1][:5] in ("shard", "repli") for name in files)
        assert not save(2)[0]
        made[0].servers.rows.read(str(tmp_path / "2"))  # a shard that was started anew knows nothing
        full, _ = save(3)
        assert full
        for number, rows in ((1, 2), (2, 1), (3, 4)):
            found = read_manifest(Storage(str(tmp_path / str(number)))).rows()
            assert (found["a"], found["c"]) == (rows, rows)


BOUND: dict[str, Any] = {"memory": 320_000, "eviction": Eviction()}
PLACED = [
    Table("hot", dim=3, optimizer=Adagrad(lr=0.1)),
    Table("a", dim=4, optimizer=Adagrad(lr=0.1), **BOUND),
    Table("names", dim=5, frozen=True),
    Table("c", dim=17, optimizer=Adagrad(lr=0.1), **BOUND),
]
"""Tables of which each is a group; a and c evict, and hot and names may be replicated."""


@contextmanager
def placed(ranks: int, replicated: Sequence[str]) -> Iterator[Together]:
    """Several workers and two shards, asked as one exchange."""
    with threads(2) as servers:
        make = connecting([s.address for s in servers], ranks, store=STORE, replicated=replicated)
        made = Together(together([lambda r=r: make(r, PLACED) for r in range(ranks)]))  # type: ignore[arg-type, misc]
        yield made
        made.close()


def use(exchange: Together, seed: int) -> None:
    """Train rows of each table, more than a and c have room for."""
    for group in exchange.groups:
        [table] = group.tables
        ids = np.random.default_rng([seed, *table.encode()]).integers(0, 3000, 2000)
        asked = [request(group.index, sorted(set(ids.tolist())))]
        lookup = exchange.lookup(asked, create=True)
        lookup.result()
        exchange.apply(lookup, [np.ones((len(asked[0].ids), group.dim), np.float32)], lr_scale=1.0)
    exchange.flush()


def assert_same_rows(one: Together, other: Together) -> None:
    mine, its = contents(one), contents(other)  # type: ignore[arg-type]
    assert mine.keys() == its.keys()
    for table, columns in mine.items():
        for x, y in zip(columns, its[table], strict=True):
            np.testing.assert_array_equal(x, y, err_msg=table)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((2, ["hot", "names"]), (1, []), marks=pytest.mark.slow),
        ((1, []), (2, ["hot", "names"])),
        ((2, ["names"]), (2, ["names"])),
        ((2, ["hot"]), (2, ["names"])),
    ],
)
def test_shards_that_hold_other_tables_than_before_go_on_with_those_that_stay(
    before: tuple[int, list[str]], after: tuple[int, list[str]], tmp_path: Path
) -> None:
    """Which rows there are, which of them are evicted next, and the rows of every other table."""
    with placed(*before) as first, placed(*after) as second:
        names = RowChunk(
            "names", np.arange(50, dtype=np.uint64), np.ones((50, 5), np.float32), np.empty((50, 0))
        )
        first.rows.load("names", replace(names, state=names.state.astype(np.float32)))
        for seed in range(3):
            use(first, seed)
        cut = first.rows.cut()
        settings = {COUNTS: dict(cut.counts)}
        write_checkpoint(str(tmp_path), Checkpoint(settings, {}, {}, (), rows=cut.write))
        second.rows.read(str(tmp_path), exact=True)
        assert_same_rows(first, second)
        for one in (first, second):
            use(one, 9)
        assert_same_rows(first, second)


def test_parts_that_do_not_belong_together_are_refused() -> None:
    with threads(1) as servers:
        address = [servers[0].address]
        tables = TABLES[:2]
        for placement, world in ((Placement(), 1), (Placement("replicated"), 2)):
            shards = connect(address, tables=tables, world=world)
            [replicas] = members(1, TABLES[2:], STORE, placement)
            with pytest.raises(ConfigError, match="replicated tables on exactly the workers"):
                RoutedExchange(shards, replicas)
            shards.close()
            replicas.close()
