"""A shard that dies between any two requests comes back as it was, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from satrap.checkpoint import Checkpoint, write_checkpoint
from satrap.errors import CheckpointError, StoreError
from satrap.exchange.servers import ShardServer
from satrap.exchange.servers.frames import FAILURE, Code, Header, Kind
from satrap.exchange.servers.payload import pack_text, unpack_text
from satrap.exchange.servers.sessions import Counters, Limits, Sessions
from tests.contract.parties import assert_equal_contents, connect, local, train
from tests.exchange.servers.journaled import Bench, hello, sections, traffic


@pytest.mark.parametrize("sync", [False, True])
def test_everything_is_as_before_after_each_of_many_deaths(tmp_path: Path, sync: bool) -> None:
    rng = np.random.default_rng(5)
    messages = traffic(rng, 3, 160, sync=sync)
    undisturbed, bench = Bench(tmp_path / "a"), Bench(tmp_path / "b")
    deaths = 0
    for header, parts in messages:
        expected, found = undisturbed.send(header, parts), bench.send(header, parts)
        assert (expected is None) == (found is None)
        if expected is not None and found is not None:
            assert expected.header == found.header
            assert [bytes(memoryview(p)) for p in expected.parts] == [
                bytes(memoryview(p)) for p in found.parts
            ]
        if rng.random() < 0.15:
            bench.die()
            bench = Bench(tmp_path / "b")
            deaths += 1
            if not sync:  # in sync, what waited for its turn was not executed: the client sends it again
                assert bench.everything() == undisturbed.everything()
            else:
                assert bench.rows() == undisturbed.rows()
                resend_waiting(bench, messages, header)
    assert deaths > 10
    assert bench.everything() == undisturbed.everything()
    bench.die()
    undisturbed.die()


def resend_waiting(bench: Bench, messages: list, last: Header) -> None:
    """Do what clients do: send again what the shard does not know."""
    for header, parts in messages:
        session = bench.sessions.known.get(header.client)
        if session is not None and header.sequence >= session.next:
            bench.send(header, parts)
        if header is last:
            return


def test_an_open_step_of_sync_survives(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first, second = hello(1, rank=0, world=2, mode="sync"), hello(2, rank=1, world=2, mode="sync")
    half = sections(rng, gradients=True), sections(rng, gradients=True)
    benches = [Bench(tmp_path / name) for name in "ab"]
    for bench in benches:
        bench.send(*first)
        bench.send(*second)
        bench.send(Header(Kind.UPDATE, 1, 1, 1, 1, 0), half[0])
    benches[1].die()
    benches[1] = Bench(tmp_path / "b")
    assert benches[1].service.board.missing() == [1]
    for bench in benches:
        bench.send(Header(Kind.UPDATE, 1, 2, 1, 1, 0), half[1])
    assert benches[1].everything() == benches[0].everything()
    assert benches[1].service.board.completed == 1


def test_an_answer_that_was_lost_with_the_process_is_given_as_it_was(tmp_path: Path) -> None:
    rng, bench = np.random.default_rng(0), Bench(tmp_path)
    bench.send(*hello(1))
    ids, gradients = sections(rng, gradients=False), sections(rng, gradients=True)
    lookup = Header(Kind.LOOKUP, 1, 1, 1, 1)
    before = bench.send(lookup, ids)
    bench.send(Header(Kind.UPDATE, 1, 1, 2, 1), gradients)
    bench.die()
    again = Bench(tmp_path)
    answer = again.send(lookup, ids)
    assert before is not None
    assert answer is not None
    assert [bytes(memoryview(p)) for p in answer.parts] == [bytes(memoryview(p)) for p in before.parts]
    assert again.sessions.counters.repeated == 1


@pytest.mark.parametrize("sync", [False, True])
def test_a_segment_continues_the_rows_of_a_snapshot(tmp_path: Path, sync: bool) -> None:
    rng = np.random.default_rng(2)
    messages = traffic(rng, 2, 120, sync=sync)
    bench = Bench(tmp_path / "b")
    for header, parts in messages[:60]:
        bench.send(header, parts)
    at_cut = [c for name in "ab" for c in bench.service.store.export(name)]
    bench.rotate(60)
    for header, parts in messages[60:90]:
        bench.send(header, parts)
    bench.journal.forget(60)
    assert [s.step for s in bench.journal.segments] == [60]
    before = bench.everything()
    bench.die()
    bench = Bench(tmp_path / "b", loaded=at_cut)
    resend_waiting(bench, messages, messages[89][0])
    assert bench.everything() == before
    bench.die()
    with pytest.raises(CheckpointError, match="does not reach back to the start of the run"):
        Bench(tmp_path / "b")


def test_a_snapshot_that_was_never_committed_changes_nothing(tmp_path: Path) -> None:
    rng, bench = np.random.default_rng(2), Bench(tmp_path)
    for header, parts in traffic(rng, 2, 40):
        bench.send(header, parts)
    bench.rotate(7)
    before = bench.everything()
    bench.die()
    assert Bench(tmp_path).everything() == before


def test_an_export_that_was_under_way_goes_on_or_is_refused(tmp_path: Path) -> None:
    rng, bench = np.random.default_rng(2), Bench(tmp_path)
    for header, parts in traffic(rng, 1, 20):
        bench.send(header, parts)
    place = bench.sessions.known[1].next
    more = [pack_text({})]
    bench.send(Header(Kind.EXPORT, 1, 1, place), [pack_text({"table": "a"})])
    at_cut = [c for name in "ab" for c in bench.service.store.export(name)]
    bench.die()
    bench = Bench(tmp_path)
    answer = bench.send(Header(Kind.EXPORT, 1, 1, place + 1), more)
    assert answer is not None
    assert unpack_text(answer.parts[0]) == {"end": True}
    bench.send(Header(Kind.EXPORT, 1, 1, place + 2), [pack_text({"table": "a"})])
    bench.rotate(20)
    bench.journal.forget(20)
    bench.die()
    bench = Bench(tmp_path, loaded=at_cut)
    answer = bench.send(Header(Kind.EXPORT, 1, 1, place + 3), more)
    assert answer is not None
    assert answer.header.kind == FAILURE
    assert "was lost when the shard was restarted" in unpack_text(answer.parts[0])["what"]


def test_nothing_is_accepted_before_everything_is_repeated() -> None:
    waiting: list[object] = []
    done: list[int | None] = [3]
    sessions = Sessions(Limits(), Counters(), waiting.append, recovering=lambda: done[0])
    from satrap.exchange.servers.frames import digest, encode

    header, parts = hello(1)
    head = encode(header, digest(parts))
    answer = sessions.receive(b"", head, parts, 0.0)
    assert answer is not None
    assert unpack_text(answer.parts[0])["code"] == Code.RECOVERING
    assert answer.header.step == 3
    assert not waiting
    done[0] = None
    assert sessions.receive(b"", head, parts, 0.0) is None
    assert len(waiting) == 1


def test_a_request_that_cannot_be_written_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    rng, bench = np.random.default_rng(2), Bench(tmp_path)
    messages = traffic(rng, 1, 40)
    for header, parts in messages[:20]:
        bench.send(header, parts)
    before = bench.rows()
    bench.journal.limit = bench.journal.size
    place = bench.sessions.known[1].next
    answer = bench.send(Header(Kind.UPDATE, 1, 1, place), sections(rng, gradients=True))
    assert answer is not None
    text = unpack_text(answer.parts[0])
    assert "the journal cannot be written: its limit of" in text["what"]
    assert text["code"] == Code.STORE
    assert bench.rows() == before
    with pytest.raises(StoreError):
        bench.journal.append(b"\0" * 76, ())
    bench.die()
    assert Bench(tmp_path).rows() == before


def test_a_journal_begins_anew_with_each_snapshot(tmp_path: Path) -> None:
    """With real snapshots: short journals, and the shard comes back from the newest committed one."""
    folder, here = tmp_path / "journal", local()
    sizes: list[int] = []
    with ShardServer("127.0.0.1:0", journal=folder) as server:
        exchange = connect([server.address])
        for n in range(4):
            train(exchange, steps=6, seed=n)
            train(here, steps=6, seed=n)
            cut = exchange.cut()
            if n == 2:
                continue  # never written: the segment before goes on
            write_checkpoint(str(tmp_path / f"step-{n}"), Checkpoint({}, {}, {}, (), rows=cut.write))
            sizes.append(len(list(folder.glob("*.journal"))))
        train(exchange, steps=3, seed=9)
        train(here, steps=3, seed=9)
    assert sizes == [2, 2, 3]
    with ShardServer(server.address, journal=folder) as again:
        assert str(again.recovery) == "snapshot step-3 + journal (3 updates)"
        assert_equal_contents(exchange, here)
        train(exchange, steps=3, seed=10)
        train(here, steps=3, seed=10)
        assert_equal_contents(exchange, here)
        exchange.close()
    here.close()
