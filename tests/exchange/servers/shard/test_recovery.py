"""A shard that dies between any two requests comes back as it was, to the bit."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap.checkpoint import Checkpoint, manifest, write_checkpoint
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import Manifest
from satrap.errors import CheckpointError, SatrapError, StoreError
from satrap.exchange import Exchange
from satrap.exchange.servers import ShardServer
from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.servers.shard.recovery import Recovery
from satrap.exchange.servers.shard.service import Service
from satrap.exchange.wire.rows import pack_chunk
from satrap.rpc.server.handler import Job
from satrap.rpc.server.journal import Journal
from satrap.rpc.server.sessions import Limits, Sessions
from satrap.rpc.wire import text
from satrap.rpc.wire.frames import ANSWER, FAILURE, Code, Header, MessageKind, digest, encode
from satrap.rpc.wire.text import pack_text, unpack_text
from satrap.store import Admission, Eviction, Shard, Tier
from tests import faults
from tests.cluster.runs import eventually
from tests.contract.parties import (
    Process,
    assert_equal_contents,
    connect,
    contents,
    gradients_for,
    local,
    random_requests,
    train,
)
from tests.exchange.servers.journaled import Bench, hello, sections, traffic


@pytest.mark.parametrize("sync", [False, True])
def test_everything_is_as_before_after_each_of_many_deaths(tmp_path: Path, sync: bool) -> None:
    rng = np.random.default_rng(5)
    messages = traffic(rng, 3, 80, sync=sync)
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
    assert deaths > 5
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


@pytest.mark.parametrize("cut", [False, True])
def test_an_open_step_of_sync_survives(tmp_path: Path, cut: bool) -> None:
    rng = np.random.default_rng(0)
    first, second = hello(1, rank=0, world=2, mode="sync"), hello(2, rank=1, world=2, mode="sync")
    half = sections(rng, gradients=True), sections(rng, gradients=True)
    benches = [Bench(tmp_path / name) for name in "ab"]
    for bench in benches:
        bench.send(*first)
        bench.send(*second)
        bench.send(Header(MessageKind.UPDATE, 1, 1, 1, 1, 0), half[0])
    rows = None
    if cut:  # while the step is open: the journal begins with what was pushed
        benches[1].rotate(1)
        benches[1].journal.forget(1)
        rows = [c for name in "ab" for c in benches[1].service.store.export(name)]
    benches[1].die()
    benches[1] = Bench(tmp_path / "b", loaded=rows)
    assert benches[1].service.board.missing() == [1]
    for bench in benches:
        bench.send(Header(MessageKind.UPDATE, 1, 2, 1, 1, 0), half[1])
    assert benches[1].everything() == benches[0].everything()
    assert benches[1].service.board.completed == 1


def test_an_answer_that_was_lost_with_the_process_is_given_as_it_was(tmp_path: Path) -> None:
    rng, bench = np.random.default_rng(0), Bench(tmp_path)
    bench.send(*hello(1))
    ids, gradients = sections(rng, gradients=False), sections(rng, gradients=True)
    lookup = Header(MessageKind.LOOKUP, 1, 1, 1, 1)
    before = bench.send(lookup, ids)
    bench.send(Header(MessageKind.UPDATE, 1, 1, 2, 1), gradients)
    bench.die()
    again = Bench(tmp_path)
    answer = again.send(lookup, ids)
    assert before is not None
    assert answer is not None
    assert [bytes(memoryview(p)) for p in answer.parts] == [bytes(memoryview(p)) for p in before.parts]
    assert again.sessions.counters.repeated == 1


def test_what_a_shard_remembers_of_many_clients_has_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With texts scaled down: a text that holds all of them is longer than one that servers read."""
    rng, bench = np.random.default_rng(0), Bench(tmp_path)
    for client in range(1, 40):
        bench.send(*hello(client))
        bench.send(Header(MessageKind.LOOKUP, 1, client, 1, 0), sections(rng, gradients=False))
    bench.rotate(1)
    bench.journal.forget(1)
    before = bench.everything()
    rows = [c for name in "ab" for c in bench.service.store.export(name)]
    bench.die()
    monkeypatch.setattr(text, "MAX_TEXT", 2000)
    assert Bench(tmp_path, loaded=rows).everything() == before


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
    bench.send(Header(MessageKind.EXPORT, 1, 1, place), [pack_text({"table": "a"})])
    at_cut = [c for name in "ab" for c in bench.service.store.export(name)]
    bench.die()
    bench = Bench(tmp_path)
    answer = bench.send(Header(MessageKind.EXPORT, 1, 1, place + 1), more)
    assert answer is not None
    assert unpack_text(answer.parts[0]) == {"end": True}
    bench.send(Header(MessageKind.EXPORT, 1, 1, place + 2), [pack_text({"table": "a"})])
    bench.rotate(20)
    bench.journal.forget(20)
    bench.die()
    bench = Bench(tmp_path, loaded=at_cut)
    answer = bench.send(Header(MessageKind.EXPORT, 1, 1, place + 3), more)
    assert answer is not None
    assert answer.header.kind == FAILURE
    assert "was lost when the shard was restarted" in unpack_text(answer.parts[0])["what"]


def test_nothing_is_accepted_before_everything_is_repeated() -> None:
    waiting: list[object] = []
    done: list[int | None] = [3]
    sessions = Sessions(Limits(), waiting.append, recovering=lambda: done[0])
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
    answer = bench.send(Header(MessageKind.UPDATE, 1, 1, place), sections(rng, gradients=True))
    assert answer is not None
    text = unpack_text(answer.parts[0])
    assert "the journal cannot be written: its limit of" in text["what"]
    assert text["code"] == Code.STORE
    assert bench.rows() == before
    with pytest.raises(StoreError):
        bench.journal.append(b"\0" * 76, ())
    bench.die()
    assert Bench(tmp_path).rows() == before


def segments(folder: Path) -> int:
    return len(list(folder.glob("*.journal")))


def test_a_journal_begins_anew_with_each_snapshot(tmp_path: Path) -> None:
    """With real snapshots: short journals, and the shard comes back from the newest committed one."""
    folder, here = tmp_path / "journal", local()
    with ShardServer("127.0.0.1:0", journal=folder) as server:
        exchange = connect([server.address])
        for n, kept in enumerate([2, 2, 2, 3]):
            train(exchange, steps=6, seed=n)
            train(here, steps=6, seed=n)
            cut = exchange.rows.cut()
            if n == 2:
                continue  # never written: the segment before goes on
            write_checkpoint(str(tmp_path / f"step-{n}"), Checkpoint({}, {}, {}, (), rows=cut.write))
            assert eventually(lambda kept=kept: segments(folder) == kept, 20)
        train(exchange, steps=3, seed=9)
        train(here, steps=3, seed=9)
    with ShardServer(server.address, journal=folder) as again:
        assert str(again.recovery) == "snapshot step-3 + journal (3 updates)"
        assert_equal_contents(exchange, here)
        train(exchange, steps=3, seed=10)
        train(here, steps=3, seed=10)
        assert_equal_contents(exchange, here)
        exchange.close()
    here.close()


def test_a_store_that_is_slow_to_answer_holds_up_no_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked which snapshots there are, since the journal of those before the newest one can go."""
    folder, go_on, read_manifest = tmp_path / "journal", threading.Event(), manifest.read_manifest

    def slow(storage: Storage) -> Manifest:
        go_on.wait(20)
        return read_manifest(storage)

    with ShardServer("127.0.0.1:0", journal=folder) as server:
        exchange = connect([server.address])
        train(exchange, steps=2, seed=0)
        write_checkpoint(str(tmp_path / "step-0"), Checkpoint({}, {}, {}, (), rows=exchange.rows.cut().write))
        monkeypatch.setattr(manifest, "read_manifest", slow)
        started = time.monotonic()
        exchange.rows.cut()
        train(exchange, steps=2, seed=1)
        assert time.monotonic() - started < 15
        assert segments(folder) == 3
        go_on.set()
        assert eventually(lambda: segments(folder) == 2, 20)
        exchange.close()


def test_a_hello_that_is_refused_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    """Of a newer group of workers, too: only one that is taken makes an end of what was written."""
    rng, bench = np.random.default_rng(2), Bench(tmp_path)
    for header, parts in traffic(rng, 1, 20):
        bench.send(header, parts)
    before, rows = bench.journal.size, bench.rows()
    header, [text] = hello(2)
    plain = unpack_text(text) | {"generation": 1}
    for wrong in ({"seed": 99}, {"rank": 7}, {"forward": "float8"}, {"tables": plain["tables"][:1]}):
        answer = bench.send(header, [pack_text(plain | wrong)])
        assert answer is not None
        assert answer.header.kind == FAILURE
    assert (bench.journal.size, len(bench.journal.segments)) == (before, 1)
    bench.die()
    bench = Bench(tmp_path)
    assert bench.rows() == rows
    assert bench.service.members.generation == 0
    answer = bench.send(header, [pack_text(plain)])
    assert answer is not None
    assert answer.header.kind != FAILURE
    assert bench.rows() == {"a": [], "b": []}
    assert bench.journal.size < before
    state = bench.everything()
    bench.die()
    after = Bench(tmp_path).everything()
    for part in ("rows", "state", "service", "board"):
        assert after[part] == state[part]


def no_memory(*_: Any, **__: Any) -> None:
    raise MemoryError


def test_a_new_group_for_which_there_is_no_memory_leaves_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, bench = np.random.default_rng(2), Bench(tmp_path)
    for header, parts in traffic(rng, 1, 20):
        bench.send(header, parts)
    rows = bench.rows()
    header, [text] = hello(2)
    with monkeypatch.context() as patch:
        patch.setattr(ShardConfig, "open", no_memory)
        answer = bench.send(header, [pack_text(unpack_text(text) | {"generation": 1})])
    assert answer is not None
    assert answer.header.kind == FAILURE
    bench.die()
    assert Bench(tmp_path).rows() == rows


def test_what_was_refused_is_still_refused_after_a_restart(tmp_path: Path) -> None:
    """It is in no journal, and its client may not have heard of it."""
    rng, bench = np.random.default_rng(2), Bench(tmp_path)
    bench.send(*hello(1))
    lookup = sections(rng, gradients=False)
    bench.send(Header(MessageKind.LOOKUP, 1, 1, 1, 1), lookup)
    refused = Header(MessageKind.EXPORT, 1, 1, 2, 1)
    bench.send(refused, [pack_text({"table": "nobody"})])
    bench.send(Header(MessageKind.LOOKUP, 1, 1, 3, 1), lookup)
    bench.die()
    bench = Bench(tmp_path)
    answer = bench.send(refused, [pack_text({"table": "nobody"})])
    assert answer is not None
    assert answer.header.kind == FAILURE
    assert unpack_text(answer.parts[0])["code"] == Code.STORE
    assert bench.sessions.known[1].next == 4


def test_a_client_goes_on_after_refusals_that_no_journal_holds(tmp_path: Path) -> None:
    """It has heard of them, so that it neither sends them again nor waits for them."""
    bench = Bench(tmp_path)
    bench.send(*hello(1))
    for sequence in (1, 2):
        bench.send(Header(MessageKind.EXPORT, 1, 1, sequence, sequence), [pack_text({"table": "nobody"})])
    bench.die()
    for sequence in (3, 4):
        bench = Bench(tmp_path)
        answer = bench.send(Header(MessageKind.FLUSH, 1, 1, sequence, 3))
        assert answer is not None
        assert answer.header.kind == MessageKind.FLUSH | ANSWER
        assert bench.sessions.known[1].next == sequence + 1
        bench.die()


def failing(monkeypatch: pytest.MonkeyPatch, bench: Bench, name: str, group: int, *messages: Any) -> None:
    """Send requests of client 1 for which there is no memory in a group of tables."""
    with monkeypatch.context() as patch:
        patch.setattr(bench.service.store.groups[group], name, no_memory)
        for kind, parts in messages:
            place = bench.sessions.known[1].next
            answer = bench.send(Header(kind, 1, 1, place, place), parts)
            assert answer is not None
            assert answer.header.kind == FAILURE
            assert "not enough memory" in unpack_text(answer.parts[0])["what"]


def test_what_failed_for_want_of_memory_and_changed_nothing_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the memory is there, it would succeed."""
    rng, bench = np.random.default_rng(2), Bench(tmp_path)
    for header, parts in traffic(rng, 1, 20):
        bench.send(header, parts)
    before, size, updates = (
        bench.rows(),
        bench.journal.size,
        bench.journal.segments[0].kinds[MessageKind.UPDATE],
    )
    failing(monkeypatch, bench, "lookup", 0, (MessageKind.LOOKUP, sections(rng, gradients=False)))
    failing(monkeypatch, bench, "update", 0, (MessageKind.UPDATE, sections(rng, gradients=True)))
    [chunk] = bench.service.store.export("a")
    failing(monkeypatch, bench, "write", 0, (MessageKind.LOAD, pack_chunk(chunk)))
    failing(monkeypatch, bench, "clear", 0, (MessageKind.CLEAR, []))
    assert (bench.journal.size, bench.journal.segments[0].kinds[MessageKind.UPDATE]) == (size, updates)
    assert bench.rows() == before
    bench.die()
    bench = Bench(tmp_path)
    assert bench.rows() == before
    assert bench.recovery.updates == updates


def test_what_failed_halfway_is_repeated_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have seen its first half, and its client was told no more than that there may be one."""
    rng, bench = np.random.default_rng(2), Bench(tmp_path / "a")
    whole = Bench(tmp_path / "b")
    for header, parts in traffic(rng, 1, 60):
        bench.send(header, parts)
        whole.send(header, parts)
    before, update = bench.rows(), sections(rng, gradients=True)
    place = bench.sessions.known[1].next
    failing(monkeypatch, bench, "update", 1, (MessageKind.UPDATE, update))
    whole.send(Header(MessageKind.UPDATE, 1, 1, place, place), update)
    half, all_of_it = bench.rows(), whole.rows()
    assert half["a"] == all_of_it["a"] != before["a"]
    assert half["b"] == before["b"] != all_of_it["b"]
    bench.die()
    assert Bench(tmp_path / "a").rows() == all_of_it
    whole.die()


def test_a_reading_that_failed_is_not_repeated_where_it_would_succeed(tmp_path: Path) -> None:
    """Its client has heard that it failed. What it had read is gone; what was asked since stays."""
    place, folder = str(tmp_path / "step-1"), tmp_path / "journal"
    with ShardServer("127.0.0.1:0", journal=folder) as server:
        exchange = connect([server.address])
        train(exchange, steps=6, seed=1)
        write_checkpoint(place, Checkpoint({}, {}, {}, (), rows=exchange.rows.cut().write))
        exchange.rows.clear()
        broken = faults.fail(lambda: OSError(5, "the store does not answer"))
        with (
            faults.armed("shard.chunk", broken, at=2),
            pytest.raises(CheckpointError, match="does not answer"),
        ):
            exchange.rows.read(place)
        assert exchange.telemetry.statistics().rows == 0
        with pytest.raises(CheckpointError, match="does not answer"):  # who asks again hears the same
            exchange.rows._check([exchange.rows._result(0, {})])
        train(exchange, steps=2, seed=2)
        before = contents(exchange)
    with ShardServer(server.address, journal=folder):
        after = contents(exchange)
        for table, columns in before.items():
            for mine, theirs in zip(columns, after[table], strict=True):
                np.testing.assert_array_equal(mine, theirs)
        exchange.rows.read(place)
        assert exchange.telemetry.statistics().rows > sum(len(ids) for ids, *_ in before.values())
        exchange.close()


def reading(tmp_path: Path, *, asked: bool) -> Path:
    """Return the journal of a shard that reads a snapshot of three chunks, first of all and when asked."""
    folder, place = tmp_path / "journal", str(tmp_path / "step-1")
    with ShardServer("127.0.0.1:0", journal=folder) as server:
        exchange = connect([server.address])
        train(exchange, steps=6, seed=1)
        write_checkpoint(place, Checkpoint({}, {}, {}, (), rows=exchange.rows.cut().write))
        if asked:
            exchange.rows.clear()
            exchange.rows.read(place)
        exchange.close()
    return folder


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.cluster
def test_a_client_waits_for_a_shard_that_reads_rows_slowly(tmp_path: Path, asked: bool) -> None:
    folder = reading(tmp_path, asked=asked)
    with faults.armed("shard.chunk", lambda _: time.sleep(0.8), every=1), ExitStack() as stack:
        server = stack.enter_context(ShardServer("127.0.0.1:0", journal=folder))
        exchange = connect([server.address], deadline=1.5)
        assert exchange.telemetry.statistics().rows > 100
        exchange.close()


@pytest.mark.parametrize(("asked", "last"), [(False, 2), (True, 5)])
def test_a_shard_that_reads_rows_ends_when_it_is_asked_to(tmp_path: Path, asked: bool, last: int) -> None:
    folder, chunks, go_on = reading(tmp_path, asked=asked), list[str](), threading.Event()

    def slow(point: str) -> None:
        chunks.append(point)
        if len(chunks) == last:
            go_on.wait(20)

    with faults.armed("shard.chunk", slow, every=1):
        server = ShardServer("127.0.0.1:0", journal=folder).start()
        assert eventually(lambda: len(chunks) == last, 20)
        threading.Timer(0.3, go_on.set).start()
        server.stop()
        assert len(chunks) == last
    with ShardServer("127.0.0.1:0", journal=folder) as again:
        exchange = connect([again.address])
        assert exchange.telemetry.statistics().rows > 100
        exchange.close()


@pytest.mark.parametrize("kind", [MessageKind.READ, MessageKind.UPDATE, MessageKind.LOOKUP])
def test_a_record_that_cannot_be_repeated_is_named(tmp_path: Path, kind: MessageKind) -> None:
    """One that fails in the background, and one of a client of whom nothing else is known."""
    bench = Bench(tmp_path)
    bench.send(*hello(1))
    bench.send(Header(MessageKind.FLUSH, 1, 1, 1))
    parts = [pack_text({"url": str(tmp_path / "nowhere")})]
    header = Header(kind, 1, 1 if kind == MessageKind.READ else 7, 2)
    bench.journal.append(encode(header, digest(parts)), parts)
    bench.die()
    for _ in range(2):  # and again
        journal = Journal(tmp_path)
        with pytest.raises(CheckpointError) as caught:
            Recovery(journal, Service()).recover(Sessions(Limits(), lambda _: None))
        journal.close()
        assert caught.value.what.startswith("the journal cannot be repeated: ")
        assert caught.value.where == f"{tmp_path / '00000000.journal'}, record 2: {kind.name}"
        assert f"remove {tmp_path}" in caught.value.fix


def test_a_process_with_such_a_journal_ends_and_says_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    parts = [pack_text({"table": "a"})]
    bench.journal.append(encode(Header(MessageKind.EXPORT, 1, 5, 3), digest(parts)), parts)
    bench.die()
    with Process("127.0.0.1:0", "--journal", str(tmp_path)) as process:
        assert process.popen.wait(20) == 1
        assert process.popen.stderr is not None
        told = process.popen.stderr.read()
    assert told.startswith(
        "error: the journal cannot be repeated: a request comes from a client without a hello"
    )
    assert "00000000.journal, record 0: EXPORT" in told
    assert "Traceback" not in told


def test_an_error_that_nobody_foresaw_is_repeated_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, bench = np.random.default_rng(2), Bench(tmp_path)
    bench.send(*hello(1))

    def fail(_: Shard) -> None:
        raise ZeroDivisionError("of a mistake in satrap")

    with monkeypatch.context() as patch:
        patch.setattr(Shard, "clear", fail)
        for sequence in range(1, 50):
            answer = bench.send(Header(MessageKind.CLEAR, 1, 1, sequence, sequence))
            assert answer is not None
            text = unpack_text(answer.parts[0])
            assert "ZeroDivisionError: of a mistake in satrap" in text["what"]
            assert text["why"] == "the request may have been executed in part"
        log = capsys.readouterr().err
        assert log.count("Traceback") == log.count("shard: clear") == 1
        bench.die()
        bench = Bench(tmp_path)
    bench.send(Header(MessageKind.LOOKUP, 1, 1, 50, 50), sections(rng, gradients=False))
    assert any(bench.rows().values())


BOUNDS: dict[str, dict[str, Any]] = {
    "eviction": {"memory": 400_000, "eviction": Eviction()},
    "admission": {
        "memory": 400_000,
        "eviction": Eviction("lfu"),
        "admission": Admission(min_count=2, memory=1 << 12),
    },
    "tier": {"memory": 1_300_000, "eviction": Eviction(), "tier": 1 << 20},
    "tier and admission": {
        "memory": 1_300_000,
        "eviction": Eviction(),
        "tier": 1 << 20,
        "admission": Admission(probability=0.8),
    },
    "tier without room": {"memory": 600_000, "eviction": Eviction(), "tier": 1 << 16},
}


def work(exchange: Exchange, seed: int) -> list[np.ndarray]:
    """Take steps on more rows than memory holds; return what was looked up."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(6):
        wanted = random_requests(rng, ids=3_000, most=1_500)
        lookup = exchange.lookup(wanted, create=True)
        found += lookup.result()
        exchange.apply(lookup, gradients_for(rng, wanted), lr_scale=1.0)
    exchange.flush()
    return found


def lost(exchange: Exchange) -> int:
    return sum(table.evicted for table in exchange.telemetry.statistics().tables.values())


@pytest.mark.chaos
@pytest.mark.parametrize("name", BOUNDS)
def test_a_killed_shard_that_evicts_comes_back_after_a_snapshot(tmp_path: Path, name: str) -> None:
    """Its rows, and which of them go next, are those of a store that was never killed.

    A tier that has no room for what memory evicts gives rows up; which ones differs after it was read back.
    """
    bounds = dict(BOUNDS[name])
    if "tier" in bounds:
        bounds["tier"] = Tier(str(tmp_path), bounds["tier"])
    folder, full = tmp_path / "journal", name == "tier without room"
    with Process("127.0.0.1:0", "--journal", str(folder)) as first:
        exchange, here = connect([first.address], deadline=60.0, **bounds), local(**bounds)
        for number in range(2):
            work(exchange, number), work(here, number)
            cut, place = exchange.rows.cut(), str(tmp_path / f"step-{number}")
            write_checkpoint(place, Checkpoint({}, {}, {}, (), rows=cut.write))
        work(exchange, 2), work(here, 2)
        assert_equal_contents(exchange, here)
        first.end()
        with Process(first.address, "--journal", str(folder)) as again:
            assert "recovering from snapshot step-1" in again.before
            if full:
                assert abs(exchange.telemetry.statistics().rows / here.telemetry.statistics().rows - 1) < 0.05
                work(exchange, 3)
            else:
                assert_equal_contents(exchange, here)
                for a, b in zip(work(exchange, 3), work(here, 3), strict=True):
                    np.testing.assert_array_equal(a, b)
                assert_equal_contents(exchange, here)
            tier = exchange.telemetry.statistics().tier
            cold = 0 if tier is None else tier.rows
            assert (cold > 500, lost(here) > 500) == ("tier" in bounds, full or "tier" not in bounds)
            exchange.close()
    here.close()


def test_a_store_that_raises_what_it_likes_ends_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new segment looks for the snapshots of older ones, which stay if nothing is known of them."""
    bench = Bench(tmp_path)
    bench.send(*hello(1))
    bench.rotate(1)
    parts = [pack_text({"url": "s3://bucket/step-1", "folder": "data-00000000", "number": 1})]
    bench.journal.append(encode(Header(MessageKind.WRITE, 1, 1, 1), digest(parts)), parts)

    def fail(_: object) -> None:
        raise ZeroDivisionError("of a library")

    monkeypatch.setattr(manifest, "read_manifest", fail)
    cut = [pack_text({"number": 2})]
    bench.recovery.executed(
        Job(bench.sessions.known[1], Header(MessageKind.CUT), cut, 0, 0.0), bench.sessions
    )
    assert bench.recovery._thread is not None
    bench.recovery._thread.join()
    bench.recovery.tidy()
    assert [segment.step for segment in bench.journal.segments] == [None, 1, 2]
    bench.die()


@pytest.mark.cluster
def test_answers_wait_for_a_client_that_comes_back_late(tmp_path: Path) -> None:
    """Since the shard recovered nobody could be heard: that is no silence after which answers are let go."""
    with ShardServer("127.0.0.1:0", journal=tmp_path) as server:
        exchange = connect([server.address], deadline=1.0)
        exchange.lookup(random_requests(np.random.default_rng(0)), create=True).result()
        with suppress(SatrapError):
            server.stop()  # before the client can acknowledge its rows
            exchange.close()
    with ShardServer("127.0.0.1:0", journal=tmp_path) as server:
        assert server.recovery is not None
        while server.recovery.progress() is not None:
            time.sleep(0.01)
        time.sleep(0.7)  # several looks at what clients hold
        assert server.statistics().kept_bytes > 0
