"""Ranks together take the steps that one store takes for all requests; who falls out of step is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from satrap.errors import ConfigError, ExchangeError, StoreError
from satrap.exchange import Lookup
from satrap.exchange.collective import Alone, CollectiveExchange
from satrap.exchange.lookahead import with_lookahead
from satrap.exchange.protocol import StepVerdict
from satrap.exchange.servers import Wire
from satrap.exchange.servers.shard.gradient_barrier import WorkerGradients, merge
from satrap.exchange.wrappers.replay import with_replays
from satrap.optim import SGD
from satrap.schema import Table
from satrap.store import StoreConfig
from tests.contract.parties import (
    SEED,
    TABLES,
    assert_equal_contents,
    connect,
    local,
    request,
    threads,
)
from tests.exchange.collective.parties import Meeting, ThreadRanks, Together, members, together
from tests.exchange.collective.work import STEPS, STORE, batches, run
from tests.support.covering import covering


def test_ranks_hold_tables() -> None:
    with pytest.raises(ConfigError, match="there are no tables"):
        CollectiveExchange(Alone(), [])


@pytest.mark.parametrize(("world", "ahead"), covering([1, 2, 3, 4], [0, 3]))
def test_ranks_together_take_the_step_of_one(world: int, ahead: int) -> None:
    works, ranks = [batches(seed) for seed in range(world)], members(world, TABLES, STORE)
    seen = together([lambda r=r: run(ranks[r], works[r], ahead) for r in range(world)])  # type: ignore[misc]
    reference, rows = local(), [list[np.ndarray]() for _ in works]
    for step in range(STEPS + ahead):
        for r, work in enumerate(works):
            if step < STEPS:
                rows[r] += reference.lookup(work[step][0], create=True).result()
        if step >= ahead and step % 4 != 3:
            shares = [
                WorkerGradients(requests, [g * np.float32(1 / world) for g in gradients], 1.0)
                for requests, gradients in (work[step - ahead] for work in works)
            ]
            merged = merge(shares)
            reference.apply(Lookup(merged.requests), merged.gradients, lr_scale=0.5)
    for mine, theirs in zip(seen, rows, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
    everybody = Together(ranks)
    assert_equal_contents(everybody, reference)  # type: ignore[arg-type]
    assert everybody.statistics().rows == reference.telemetry.statistics().rows
    assert [sum(r.traffic().own.values()) > 0 for r in (rank.telemetry for rank in ranks)] == [True] * world
    everybody.close()
    reference.close()


def test_an_update_may_come_long_after_its_lookup_and_without_one() -> None:
    ranks, reference = members(2, TABLES, STORE), local()
    wanted = [[request(0, [1, 2], [3])], [request(0, [2], []), request(1, [7, 8])]]
    ones = [[np.ones((len(q.ids), (4, 17)[q.group]), np.float32) for q in one] for one in wanted]

    def work(r: int) -> None:
        old = ranks[r].lookup(wanted[r], create=True)
        for _ in range(70):
            ranks[r].lookup([request(0, [5], [])], create=True).result()
        ranks[r].apply(old, ones[r], lr_scale=1.0)  # forgotten by its number
        new = ranks[r].lookup(wanted[r], create=True)
        ranks[r].apply(Lookup(wanted[r]) if r else new, ones[r], lr_scale=1.0)  # one with ids, one without
        ranks[r].apply(Lookup(wanted[r] if r else []), ones[r] if r else [], lr_scale=1.0)
        ranks[r].flush()

    together([lambda r=r: work(r) for r in range(2)])  # type: ignore[misc]
    for one in [*wanted, [request(0, [5], [])]]:
        reference.lookup(one, create=True).result()
    halves = [WorkerGradients(wanted[r], [g / 2 for g in ones[r]], 1.0) for r in range(2)]
    for shares in (halves, halves, halves[1:]):
        merged = merge(shares)
        reference.apply(Lookup(merged.requests), merged.gradients, lr_scale=1.0)
    everybody = Together(ranks)
    assert_equal_contents(everybody, reference)  # type: ignore[arg-type]
    everybody.close()
    reference.close()


def test_rows_that_are_known_are_not_asked_for_while_others_ask() -> None:
    ranks = members(2, TABLES, STORE)
    known = np.full((1, 4), 5, np.float32)
    lookups = [
        with_replays(ranks[0], [[known]]).lookup([request(0, [1], [])], create=True),
        ranks[1].lookup([request(0, [9], [])], create=True),
    ]
    np.testing.assert_array_equal(lookups[0].result()[0], known)
    assert lookups[1].result()[0].shape == (1, 4)
    for rank, lookup in zip(ranks, lookups, strict=True):
        rank.apply(lookup, [np.ones((1, 4), np.float32)], lr_scale=1.0)
    together([rank.flush for rank in ranks])
    assert ranks[0].telemetry.statistics().rows == 1  # the row that was known is not in the store
    assert ranks[0].telemetry.statistics().tables["a"].dropped == 1
    Together(ranks).close()


def test_a_wrong_request_of_one_rank_is_refused_on_all_and_they_go_on() -> None:
    ranks = members(3, TABLES, STORE)
    lookups = [rank.lookup([request(7 if rank is ranks[1] else 0, [1], [])], create=True) for rank in ranks]
    for lookup in lookups:
        with pytest.raises(StoreError, match="there is no group 7") as caught:
            lookup.result()
        assert caught.value.where == "rank 1"
    lookups = [rank.lookup([request(0, [1], [])], create=True) for rank in ranks]
    assert len({lookup.result()[0].tobytes() for lookup in lookups}) == 1
    assert [lookup.active for lookup in lookups] == [3, 3, 3]
    Together(ranks).close()


def test_bad_gradients_of_one_rank_are_refused_on_all() -> None:
    ranks = members(2, TABLES, STORE)
    lookups = [rank.lookup([request(0, [1], [])], create=True) for rank in ranks]
    before = lookups[0].result()[0]
    for value, rank, lookup in zip((1.0, np.nan), ranks, lookups, strict=True):
        rank.apply(lookup, [np.full((1, 4), value, np.float32)], lr_scale=1.0)

    def refused(rank: CollectiveExchange) -> None:
        with pytest.raises(StoreError, match="rank 1"):
            rank.flush()

    together([lambda rank=rank: refused(rank) for rank in ranks])  # type: ignore[misc]
    after = [rank.lookup([request(0, [1], [])], create=False) for rank in ranks]
    np.testing.assert_array_equal(after[0].result()[0], before)
    Together(ranks).close()


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_update_that_one_rank_refuses_changes_nothing_and_all_go_on(ahead: int) -> None:
    found = []
    for refused in (False, True):  # first without that step
        ranks = members(2, TABLES, STORE)
        for rank in ranks if ahead else ():
            with_lookahead(rank)

        def work(r: int, ranks: Any = ranks, refused: bool = refused) -> None:
            steps = [s for s in range(6) if refused or s != 2]
            waiting: list[Any] = []
            for turn in range(len(steps) + ahead):
                if turn < len(steps):
                    waiting.append(ranks[r].lookup([request(0, [1, 2 + steps[turn] % 2], [3])], create=True))
                if turn >= ahead:
                    lookup = waiting.pop(0)
                    ones = [np.ones_like(rows) for rows in lookup.result()]
                    if steps[turn - ahead] == 2 and r == 1:
                        ranks[r].apply(lookup, ones, lr_scale=1.0, verdict=StepVerdict(False, lambda: False))
                    else:
                        ranks[r].apply(lookup, ones, lr_scale=1.0)
            ranks[r].flush()

        together([lambda r=r: work(r) for r in range(2)])  # type: ignore[misc]
        found.append(Together(ranks))
    assert_equal_contents(*found)  # type: ignore[arg-type]
    for everybody in found:
        everybody.close()


def test_a_rank_that_does_something_else_is_named_on_all_and_nothing_goes_on() -> None:
    ranks = members(2, TABLES, STORE)
    lookups = [ranks[0].lookup([], create=True), ranks[1].lookup([], create=False)]
    for lookup in lookups:
        with pytest.raises(
            ExchangeError, match=r"rank [01] is at operation 1 \((lookup|peek)\), rank [01] at 1"
        ):
            lookup.result()
    with pytest.raises(ExchangeError, match="at operation 1"):
        ranks[0].flush()
    Together(ranks).close()


@pytest.mark.parametrize(
    ("tables", "store", "what"),
    [
        (TABLES[:2], STORE, "tables"),
        ([*TABLES[:2], Table("c", dim=17, optimizer=SGD(lr=1.0))], STORE, "tables"),
        (TABLES, StoreConfig(seed=SEED + 1), "store"),
    ],
)
def test_ranks_that_want_different_rows_are_refused(
    tables: Sequence[Table], store: StoreConfig, what: str
) -> None:
    meeting = Meeting(2)

    def make(rank: int) -> pytest.ExceptionInfo[ConfigError]:
        here = ThreadRanks(meeting, rank)
        with pytest.raises(ConfigError, match=f"differs from rank {rank} in {what}") as caught:
            CollectiveExchange(here, tables if rank else TABLES, store=store if rank else STORE)
        return caught

    assert [caught.value.what[:6] for caught in together([lambda: make(0), lambda: make(1)])] == [
        "rank 1",
        "rank 0",
    ]


@pytest.mark.parametrize(
    "wire",
    [Wire(), Wire("float16", "float16"), Wire("float16", "float32"), Wire("int8", "int8")],
)
def test_short_numbers_on_the_way_are_those_of_shard_servers(wire: Wire) -> None:
    meeting, world = Meeting(2), 2
    works = [batches(seed) for seed in range(world)]

    def one(r: int) -> tuple[CollectiveExchange, list[np.ndarray]]:
        exchange = CollectiveExchange(ThreadRanks(meeting, r), TABLES, store=STORE, wire=wire)
        return exchange, run(exchange, works[r], 0)

    ranks, seen = zip(*together([lambda: one(0), lambda: one(1)]), strict=True)
    with threads(2) as servers:
        addresses = [server.address for server in servers]
        clients = [connect(addresses, mode="sync", rank=r, world=world, wire=wire) for r in range(world)]
        theirs = together([lambda r=r: run(clients[r], works[r], 0) for r in range(world)])  # type: ignore[misc]
        for mine, others in zip(seen, theirs, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(mine, others, strict=True))
        assert_equal_contents(Together(ranks), clients[0])  # type: ignore[arg-type]
        mine, others = ranks[0].telemetry.traffic(), clients[0].telemetry.traffic()
        assert others.rounding_forward is None
        for error, form in (
            (mine.rounding_forward, wire.forward),
            (mine.rounding_backward, wire.backward),
            (others.rounding_backward, wire.backward),
        ):
            assert error is not None
            assert error < 0.01
            assert (error > 0) == (form != "float32")
        for client in clients:
            client.close()
    Together(ranks).close()
