"""Who waits for whom in `sync`, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from satrap.exchange.servers.shard.service import Service
from satrap.exchange.wire.sections import Section, pack
from satrap.rpc.server.handler import Job
from satrap.rpc.server.session import WINDOW, Answer, Session
from satrap.rpc.server.sessions import Limits
from satrap.rpc.server.turns import Turns
from satrap.rpc.wire.frames import FAILURE, Buffer, Code, Header, MessageKind
from satrap.rpc.wire.text import unpack_text
from satrap.store import Eviction, Tier
from tests.exchange.servers.journaled import Bench, hello, sections


class Desk:
    """Two workers of `sync` before one shard."""

    def __init__(self, **bounds: Any) -> None:
        self.answers: list[tuple[int, Answer]] = []
        self.heard = {0: 0.0, 1: 0.0}
        self.full: set[int] = set()
        self.service = Service()
        clients: Any = SimpleNamespace(
            limits=Limits(wait=25.0),
            heard=lambda rank: self.heard[rank],
            has_room=lambda session: session.rank not in self.full,
        )
        self.turns = Turns(
            self.service, lambda job, answer: self.answers.append((job.session.rank, answer)), clients
        )
        self.sessions = [Session(rank + 1, b"") for rank in range(2)]
        self.rng = np.random.default_rng(0)
        for rank in range(2):
            header, parts = hello(rank + 1, rank=rank, world=2, mode="sync", **bounds)
            self.turns.take(Job(self.sessions[rank], header, parts, 0, 0.0))
        self.answers.clear()

    def ask(
        self, rank: int, kind: MessageKind, step: int, now: float, parts: Sequence[Buffer] | None = None
    ) -> None:
        if parts is None:
            parts = sections(self.rng, gradients=kind == MessageKind.UPDATE)
        session = self.sessions[rank]
        session.next += 1
        header = Header(kind, 1, session.client, session.next, 0, step)
        self.turns.take(Job(session, header, parts, 7, now))


def test_a_lookup_waits_for_the_step_before_it_and_then_gets_its_turn() -> None:
    desk = Desk()
    desk.ask(0, MessageKind.UPDATE, 0, 1.0)
    desk.ask(0, MessageKind.LOOKUP, 1, 1.0)
    desk.ask(0, MessageKind.LOOKUP, 1, 1.0)
    assert [(r, a.header.kind & 127) for r, a in desk.answers] == [(0, MessageKind.UPDATE)]
    desk.ask(1, MessageKind.UPDATE, 0, 2.0)
    assert [(r, a.header.kind & 127) for r, a in desk.answers[1:]] == [
        (1, MessageKind.UPDATE),
        (0, MessageKind.LOOKUP),
        (0, MessageKind.LOOKUP),
    ]
    assert desk.turns.executed[MessageKind.LOOKUP] == 2


def test_a_request_far_ahead_of_the_open_step_is_refused_at_once() -> None:
    desk = Desk()
    desk.ask(0, MessageKind.LOOKUP, 1, 1.0)
    assert not desk.answers
    for step in (2, 10**18, 2**64 - 1):
        desk.ask(1, MessageKind.LOOKUP, step, 1.0)
        rank, answer = desk.answers.pop()
        assert (rank, answer.header.kind) == (1, FAILURE)
        text = unpack_text(answer.parts[0])
        assert text["code"] == Code.SEQUENCE
        assert text["what"] == f"a request of step {step} came while step 0 is open"


def test_requests_that_wait_fill_a_window_whatever_else_was_answered(tmp_path: Path) -> None:
    """A refusal overtakes what waits: who acknowledges it has not acknowledged the answers before it."""
    bench = Bench(tmp_path)
    for client in (1, 2):
        bench.send(*hello(client, rank=client - 1, world=2, mode="sync"))
    session = bench.sessions.known[1]
    for n in range(3 * WINDOW):
        bench.send(Header(MessageKind.FLUSH, 1, 1, session.next, session.done, 1 if n % 10 else 9))
    assert WINDOW // 2 < session.parked <= WINDOW
    bench.die()


def test_a_client_without_room_for_answers_waits_until_it_has_and_its_updates_behind() -> None:
    desk = Desk()
    desk.full.add(1)
    desk.ask(0, MessageKind.LOOKUP, 0, 1.0)
    desk.ask(1, MessageKind.LOOKUP, 0, 1.0)
    desk.ask(1, MessageKind.UPDATE, 0, 1.0)
    assert kinds(desk) == [(0, MessageKind.LOOKUP)]
    assert (desk.sessions[1].parked, desk.sessions[1].parked_bytes) == (2, 14)
    desk.turns.expire(2.0)
    assert len(desk.answers) == 1
    desk.full.clear()
    desk.turns.expire(3.0)
    assert kinds(desk)[1:] == [(1, MessageKind.LOOKUP), (1, MessageKind.UPDATE)]
    assert (desk.sessions[1].parked, desk.sessions[1].parked_bytes) == (0, 0)


def test_of_very_many_ranks_that_are_silent_a_few_are_named() -> None:
    desk = Desk()
    header, parts = hello(9, rank=0, world=65_536, mode="sync")
    desk.turns.take(Job(session := Session(9, b""), header, parts, 0, 0.0))
    desk.turns.take(Job(session, Header(MessageKind.LOOKUP, 1, 9, 1, 0, 1), pack([]), 0, 0.0))
    desk.heard = dict.fromkeys(range(65_536), 0.0)
    desk.turns.expire(60.0)
    text = unpack_text(desk.answers[-1][1].parts[0])
    assert text["code"] == Code.DEADLINE
    assert text["what"].endswith("no update came from rank 0, 1, 2, 3, 4, 5, 6, 7")


def test_what_waits_of_a_client_that_was_replaced_is_refused() -> None:
    desk = Desk()
    desk.ask(0, MessageKind.LOOKUP, 1, 1.0)
    desk.sessions[0].fenced = True
    desk.turns.expire(2.0)
    [(_, answer)] = desk.answers
    assert unpack_text(answer.parts[0])["code"] == Code.FENCED


def kinds(desk: Desk) -> list[tuple[int, int]]:
    return [(rank, answer.header.kind & 127) for rank, answer in desk.answers]


def test_ordered_lookups_of_a_step_take_turns_by_rank() -> None:
    desk = Desk(ordered=True)
    desk.ask(1, MessageKind.LOOKUP, 0, 1.0)
    assert kinds(desk) == []
    desk.ask(0, MessageKind.LOOKUP, 0, 1.0, pack([]))  # it has no batch
    assert kinds(desk) == [(0, MessageKind.LOOKUP), (1, MessageKind.LOOKUP)]
    desk.ask(0, MessageKind.LOOKUP, 0, 1.0)  # another one
    desk.ask(1, MessageKind.UPDATE, 0, 2.0)
    desk.ask(1, MessageKind.LOOKUP, 1, 2.0)
    desk.ask(0, MessageKind.UPDATE, 0, 2.0)
    assert kinds(desk)[2:] == [(0, MessageKind.LOOKUP), (1, MessageKind.UPDATE), (0, MessageKind.UPDATE)]
    desk.ask(0, MessageKind.UPDATE, 1, 3.0)  # it will not look up in this step any more
    assert kinds(desk)[5:] == [(0, MessageKind.UPDATE), (1, MessageKind.LOOKUP)]


def test_a_new_worker_of_a_rank_is_waited_for_again() -> None:
    desk = Desk(ordered=True)
    desk.ask(0, MessageKind.LOOKUP, 0, 1.0)
    header, parts = hello(3, rank=0, world=2, mode="sync", ordered=True)
    desk.turns.take(Job(new := Session(3, b""), header, parts, 0, 1.0))
    desk.answers.clear()
    desk.ask(1, MessageKind.LOOKUP, 0, 1.0)
    assert kinds(desk) == []
    desk.sessions[0] = new
    desk.ask(0, MessageKind.LOOKUP, 0, 1.0)
    assert kinds(desk) == [(0, MessageKind.LOOKUP), (1, MessageKind.LOOKUP)]


def test_which_rows_go_does_not_depend_on_which_worker_is_faster() -> None:
    found = []
    for seed in range(6):
        desk, order = Desk(ordered=True, memory=400_000, eviction=Eviction()), np.random.default_rng(seed)
        own = [np.random.default_rng(rank) for rank in range(2)]
        for step in range(8):
            for rank in order.permutation(2).tolist():
                ids = [own[rank].choice(20_000, 900, replace=False).astype(np.uint64) for _ in range(2)]
                splits = np.array([0, 900], np.int64)
                desk.ask(
                    rank, MessageKind.LOOKUP, step, 1.0, pack([Section(g, splits, ids[g]) for g in range(2)])
                )
            for rank in order.permutation(2).tolist():
                desk.ask(rank, MessageKind.UPDATE, step, 1.0, pack([]))
        assert not any(answer.header.kind == FAILURE for _, answer in desk.answers)
        assert sum(t.evicted for t in desk.service.store.statistics().tables.values()) > 100
        found.append({chunk.table: chunk.ids.tolist() for chunk in desk.service.store.snapshot()})
        desk.service.close()
    assert all(one == found[0] for one in found)


def test_nothing_of_a_worker_is_executed_once_another_has_its_rank() -> None:
    """Its requests may have come before the hello of the other and still wait, or be in the queue."""
    desk = Desk()
    desk.ask(0, MessageKind.UPDATE, 0, 1.0)
    desk.ask(0, MessageKind.LOOKUP, 1, 1.0)
    desk.ask(0, MessageKind.UPDATE, 1, 1.0)  # waits behind the lookup
    header, parts = hello(3, rank=0, world=2, mode="sync")
    desk.turns.take(Job(new := Session(3, b""), header, parts, 0, 1.0))
    desk.sessions[0].fenced = True  # as `Sessions.finished` does
    desk.answers.clear()
    desk.ask(0, MessageKind.UPDATE, 0, 2.0)  # is in the queue behind the hello
    desk.ask(1, MessageKind.UPDATE, 0, 2.0)
    assert desk.service.board.missing() == [0]
    desk.sessions[0] = new
    desk.ask(0, MessageKind.UPDATE, 0, 3.0)
    refused = [unpack_text(a.parts[0])["code"] for _, a in desk.answers if a.header.kind == FAILURE]
    assert refused == [Code.FENCED] * 3
    assert desk.service.board.completed == 1
    assert desk.service.board.missing() == [0, 1]


def test_rows_on_disk_are_read_while_a_lookup_waits(tmp_path: Path) -> None:
    desk = Desk(memory=1_600_000, eviction=Eviction("lru"), tier=Tier(str(tmp_path), 700_000))
    store = desk.service.store
    for start in range(0, 9_000, 60):  # the ids 0..59, which requests name, leave memory
        for table in "ab":
            store.lookup(table, np.arange(start, start + 60, dtype=np.uint64))
    desk.ask(0, MessageKind.LOOKUP, 0, 1.0)  # need not wait
    store.ahead.settle()
    assert store.statistics().tier.prefetched == 0
    desk.ask(0, MessageKind.UPDATE, 0, 1.0)
    desk.ask(0, MessageKind.LOOKUP, 1, 1.0)
    store.ahead.settle()
    tier = store.statistics().tier
    assert tier.prefetched > tier.prefetch_hits == 0
    desk.ask(1, MessageKind.UPDATE, 0, 2.0)
    assert store.statistics().tier.prefetch_hits > 0
    assert not any(answer.header.kind == FAILURE for _, answer in desk.answers)
    desk.service.close()


@pytest.mark.parametrize("alive", [False, True])
def test_patience_ends_when_nothing_is_heard_of_the_one_that_is_waited_for(alive: bool) -> None:
    """A worker that waits for another shard says so, and is waited for in turn."""
    desk = Desk()
    desk.ask(0, MessageKind.UPDATE, 0, 1.0)
    desk.ask(0, MessageKind.LOOKUP, 1, 1.0)
    for now in range(1, 60):
        if alive:
            desk.heard[1] = float(now)
        desk.turns.expire(float(now))
    refused = [a for _, a in desk.answers if a.header.kind == FAILURE]
    assert len(refused) == (0 if alive else 1)
    if not alive:
        text = unpack_text(refused[0].parts[0])
        assert text["code"] == Code.DEADLINE
        assert text["what"] == "step 0 is not complete: no update came from rank 1"
        assert text["where"] == "stage: lookup of rank 0"
