"""A shard serves one run at a time, and of it one generation of workers."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np

from satrap.exchange.wire.sections import pack
from satrap.rpc.server.session import Answer
from satrap.rpc.wire.frames import FAILURE, Code, Header, MessageKind
from satrap.rpc.wire.text import pack_text, unpack_text
from tests.exchange.servers.journaled import Bench, bench, gradients, hello, refused, sections, text_of


def greet(shard: Bench, client: int, run: str, **changes: Any) -> Answer:
    """Say hello as a worker of a run."""
    header, [text] = hello(client)
    answer = shard.send(header, [pack_text(unpack_text(text) | {"run": run} | changes)])
    assert answer is not None
    return answer


def test_a_shard_serves_one_run_at_a_time(tmp_path: Path) -> None:
    """With equal tables and seed, too, and also after it has come back; a newer generation does not help."""
    shard = Bench(tmp_path)
    assert greet(shard, 1, "first run").header.kind != FAILURE
    shard.send(Header(MessageKind.LOOKUP, 1, 1, 1, 1), pack([gradients([0.0] * 4)]))
    rows = shard.rows()
    for step in range(2):
        for other, changes in (("second run", {}), ("second run", {"generation": 1}), ("", {})):
            refusal = greet(shard, 2, other, **changes)
            assert refusal.header.kind == FAILURE
            told = text_of(refusal)
            assert told["code"] == Code.CONFIG
            assert "held by run 'first ru'" in told["what"]
            assert "closed: 1" in told["why"]
        assert shard.rows() == rows
        loaded = [chunk for name in "ab" for chunk in shard.service.store.export(name)]
        shard.rotate(step)
        shard.journal.forget(step)  # what it remembers at a snapshot names the run, too
        shard.die()
        shard = Bench(tmp_path, loaded=loaded)
    assert greet(shard, 3, "first run").header.kind != FAILURE
    shard.die()


def test_a_run_that_has_ended_makes_room_for_the_next_one(tmp_path: Path) -> None:
    """Until then its rows stay, for itself; the next one begins without any, with tables of its own."""
    shard = Bench(tmp_path)
    for client in (1, 2):
        greet(shard, client, "first")
    shard.send(Header(MessageKind.LOOKUP, 1, 1, 1, 1), pack([gradients([0.0] * 4)]))
    rows = shard.rows()
    shard.send(Header(MessageKind.BYE, 1, 1, 2, 2))
    assert greet(shard, 3, "second").header.kind == FAILURE
    shard.send(Header(MessageKind.BYE, 1, 2, 1, 1))
    assert greet(shard, 4, "first").header.kind != FAILURE
    assert shard.rows() == rows
    shard.send(Header(MessageKind.BYE, 1, 4, 1, 1))
    assert greet(shard, 5, "second", seed=8).header.kind != FAILURE
    assert not any(shard.rows().values())
    assert greet(shard, 6, "first").header.kind == FAILURE
    before = shard.everything()["service"]
    shard.die()
    shard = Bench(tmp_path)
    assert shard.everything()["service"] == before
    shard.die()


def test_a_run_whose_clients_are_gone_makes_room_and_lets_its_cut_go() -> None:
    with bench() as shard:
        greet(shard, 1, "first")
        shard.send(Header(MessageKind.LOOKUP, 1, 1, 1, 1), pack([gradients([0.0] * 4)]))
        shard.send(Header(MessageKind.CUT, 1, 1, 2, 2), [pack_text({"number": 5})])
        shard.service.forget(lambda client: client != 1)
        assert greet(shard, 2, "second").header.kind == FAILURE
        assert cuts(shard) == 1
        shard.service.forget(lambda client: client == 1)
        gc.collect()
        assert cuts(shard) == 0
        assert greet(shard, 3, "second").header.kind != FAILURE
        late = shard.send(Header(MessageKind.UPDATE, 1, 1, 3, 3), pack([gradients([1.0] * 4)]))
        assert late is not None
        assert "from a run that is over" in text_of(late)["what"]


def cuts(shard: Bench) -> int:
    """Return how many cuts the first table group copies rows for."""
    return len(shard.service.store.groups[0]._cuts)


def test_a_client_that_leaves_takes_only_its_own_lookups_with_it() -> None:
    with bench() as shard:
        for client in (1, 2):
            greet(shard, client, "first")
            shard.send(Header(MessageKind.LOOKUP, 1, client, 1, 1), pack([gradients([0.0] * 4)]))
        assert looked_up(shard) == {1, 2}
        shard.send(Header(MessageKind.BYE, 1, 2, 2, 2))
        assert looked_up(shard) == {1}


def looked_up(shard: Bench) -> set[int]:
    """Return the clients with lookups that the shard keeps for their updates."""
    assert shard.service._opened is not None
    return {client for client, _ in shard.service._opened._found._kept}


def test_only_a_generation_that_may_come_next_makes_an_end_of_the_one_before() -> None:
    _, [text] = hello(1)

    def of(generation: int) -> list[Any]:
        return [pack_text(unpack_text(text) | {"generation": generation})]

    with bench() as shard:
        shard.send(*hello(9))
        shard.send(
            Header(MessageKind.LOOKUP, 1, 9, 1, 1), sections(np.random.default_rng(0), gradients=False)
        )
        for generation in (101, 1 << 50):
            told = refused(shard, MessageKind.HELLO, of(generation))
            assert told["what"] == f"generation {generation} of the workers cannot follow 0"
        answer = shard.send(Header(MessageKind.HELLO, 1, 2), of(3))  # of the two before it no worker got here
        assert answer is not None
        assert answer.header.kind != FAILURE
        assert shard.service.members.generation == 3
