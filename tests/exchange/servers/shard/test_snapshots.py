"""Cuts of shards: consistent under load, written by the shards, read by any other number of them."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.checkpoint import Checkpoint, Series, read_checkpoint, verify, write_checkpoint
from satrap.checkpoint.chain import open_chain, read_buckets, read_deleted
from satrap.checkpoint.files import storage
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.checkpoint.rewrite import compact
from satrap.errors import CheckpointError, ConfigError, SatrapError, StoreError
from satrap.exchange import Exchange, Lookup, LookupRequest
from satrap.exchange.servers import ShardMap, ShardServer
from satrap.exchange.servers.shard.snapshots import ShardSnapshots, pack_result, unpack_result
from satrap.exchange.wire.sections import pack
from satrap.export.reshard import reshard_everywhere
from satrap.optim import Adagrad, Adam
from satrap.rpc.wire import text
from satrap.rpc.wire.frames import FrameError, MessageKind
from satrap.rpc.wire.text import pack_text
from satrap.schema import Table
from satrap.store import Eviction, Shard
from tests import faults
from tests.cluster.runs import eventually
from tests.contract.parties import (
    Process,
    assert_equal_contents,
    connect,
    contents,
    local,
    request,
    threads,
    train,
)
from tests.support.covering import covering
from tests.support.examples import THOROUGH, examples
from tests.support.snapshots import write

SHARDS = (1, 2, 3, 5, 7)
PAIRS = list(product((0, *SHARDS), SHARDS)) if THOROUGH else [(0, 3), (1, 2), (2, 7), (3, 1), (7, 5), (5, 3)]
"""How many shards write and read; 0: one process. Each number writes once and reads once in `make test`."""
SMALL: dict[str, Any] = {"memory": 1_040_000, "eviction": Eviction()}
"""Two shards that evict."""


def test_saved_with_n_loaded_with_m(tmp_path: Path) -> None:
    """Every row, state and count, for all n and m; tables of two groups, shards without rows."""
    here = local()
    train(here, steps=4, seed=2)
    here.lookup([request(0, [5], []), request(1, [])], create=True).result()
    rows = here.telemetry.statistics().tables
    places = {0: write(here, tmp_path / "here")}
    for n in SHARDS:
        with threads(n) as servers:
            exchange = connect([s.address for s in servers])
            train(exchange, steps=4, seed=2)
            exchange.lookup([request(0, [5], []), request(1, [])], create=True).result()
            places[n] = write(exchange, tmp_path / str(n))
            exchange.close()
        verify(places[n])
    for n, m in PAIRS:
        with threads(m) as servers:
            exchange = connect([s.address for s in servers])
            exchange.rows.read(places[n])
            assert_equal_contents(exchange, here)
            counts = exchange.telemetry.statistics().tables
            assert {t: c.rows for t, c in counts.items()} == {t: c.rows for t, c in rows.items()}, n
            exchange.close()
    here.close()


def test_a_shard_has_any_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With texts and blocks scaled down: its files have more checksums than fit into a text."""
    monkeypatch.setattr(text, "MAX_TEXT", 4000)
    monkeypatch.setattr(storage, "BLOCK", 32)
    with threads(2) as servers:
        exchange = connect([s.address for s in servers])
        train(exchange, steps=4, seed=2)
        place = write(exchange, tmp_path / "cut")
        saved = exchange.rows.cut(still=True).write
        write_checkpoint(str(tmp_path / "whole"), Checkpoint({}, {}, {}, (), rows=saved))
        sums = [len(e.crc32) for e in read_manifest(Storage(place)).files.values()]
        assert sum(sums) * len("1234567890, ") > 2 * 4000  # so many that each shard has too many
        here = local()
        for each in (place, str(tmp_path / "whole")):
            verify(each)
            here.rows.clear()
            here.rows.read(each)
            assert_equal_contents(exchange, here)
        here.close()
        exchange.close()


@settings(deadline=None, max_examples=examples(50))
@given(st.dictionaries(st.text(max_size=5), st.lists(st.integers(0, 2**32 - 1), max_size=9)))
def test_a_result_round_trips_with_its_checksums(sums: dict[str, list[int]]) -> None:
    files = {name: {"bytes": 7, "crc32": own, "table": "a"} for name, own in sums.items()}
    result = {"done": True, "files": files}
    parts = [bytes(memoryview(part)) for part in pack_result(result)]
    assert unpack_result(parts) == result
    if any(sums.values()):
        with pytest.raises(FrameError, match="crc32"):
            unpack_result([parts[0], parts[1] + b"abcd"])


def test_what_was_never_cut_can_be_put_back() -> None:
    """A client may ask it of a shard that was started anew after the cut."""
    store = Shard([Table("a", dim=4, optimizer=Adagrad(lr=0.1))])
    ShardSnapshots().put_back(store, 3)
    assert not store.changes.following
    store.close()


def test_one_process_reads_what_shards_wrote(tmp_path: Path) -> None:
    with threads(3) as servers:
        there = connect([s.address for s in servers])
        train(there, steps=3, seed=1)
        here = local()
        here.rows.read(write(there, tmp_path / "a"))
        assert_equal_contents(here, there)
        here.close()
        there.close()


@pytest.mark.cluster
def test_real_processes(tmp_path: Path) -> None:
    with Process() as a, Process() as b, Process() as c:
        two = connect([a.address, b.address])
        train(two, steps=3, seed=1)
        one = connect([c.address])
        one.rows.read(write(two, tmp_path / "x"))
        assert_equal_contents(one, two)
        one.close()
        two.close()


def test_few_rows_leave_shards_without_a_file(tmp_path: Path) -> None:
    with threads(7) as servers:
        exchange = connect([s.address for s in servers])
        exchange.lookup([request(0, [1, 2], []), request(1, [])], create=True).result()
        place = write(exchange, tmp_path / "x")
        exchange.close()
    files = [path.name for path in (tmp_path / "x").glob("data-*/table-*")]
    assert 1 <= len(files) <= 2
    assert sum(len(chunk.ids) for chunk in read_buckets(place)) == 2
    parts = [read_buckets(place, ShardMap(5).buckets(s)) for s in range(5)]
    assert sorted(i for part in parts for chunk in part for i in chunk.ids.tolist()) == [1, 2]


@pytest.mark.cluster
def test_a_row_is_never_of_two_instants_under_load(tmp_path: Path) -> None:
    """Three workers push ones to all rows without a pause while two shards write, slowly, what was cut.

    Adagrad's state counts the pushes, and its weight is a function of the count: each saved row must have the
    count of the cut, and the weight that belongs to it.
    """
    table = Table("t", dim=2, optimizer=Adagrad(lr=0.5, eps=1e-20), initial_scale=0.0)
    ids = np.arange(3000, dtype=np.uint64)
    everything = LookupRequest(0, ids, np.array([0, len(ids)], np.int64))
    ones, world, before = np.full((len(ids), 2), 3.0, np.float32), 3, 7  # the mean over 3 workers is 1
    ready, taken, stop = threading.Barrier(world + 1), threading.Barrier(world + 1), threading.Event()
    after = [0] * world

    def work(rank: int, addresses: list[str]) -> None:
        exchange = connect(addresses, tables=[table], rank=rank, world=world)
        for _ in range(before):
            exchange.apply(Lookup([everything]), [ones.copy()], lr_scale=1.0)
        exchange.flush()
        ready.wait(20)
        taken.wait(20)
        while not stop.is_set():
            exchange.apply(Lookup([everything]), [ones.copy()], lr_scale=1.0)
            after[rank] += 1
        exchange.close()

    with threads(2) as servers:
        addresses = [s.address for s in servers]
        first = connect(addresses, tables=[table])
        first.lookup([everything], create=True).result()
        workers = [threading.Thread(target=work, args=(r, addresses)) for r in range(world)]
        for worker in workers:
            worker.start()
        ready.wait(20)
        cut = first.rows.cut()
        taken.wait(20)
        with faults.armed("disk.write", faults.delay(0.2), every=1):
            write_checkpoint(str(tmp_path / "x"), Checkpoint({}, {}, {}, (), rows=cut.write))
        stop.set()
        for worker in workers:
            worker.join(20)
        newest = first.lookup([everything], create=False).result()[0]
        first.close()
    assert min(after) > 3
    expected = np.float32(0.0)
    for count in range(1, world * before + 1):
        expected -= np.float32(0.5) / np.sqrt(np.float32(count))
    found = 0
    for _, chunk in read_checkpoint(str(tmp_path / "x")).chunks:
        assert (chunk.state == world * before).all()
        np.testing.assert_allclose(chunk.weights, expected, rtol=1e-5)
        assert len(np.unique(chunk.weights)) == 1
        found += len(chunk.ids)
    assert found == len(ids)
    assert (newest < expected).all()


def test_a_failed_write_is_said_and_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    with threads(2) as servers:
        exchange = connect([s.address for s in servers])
        train(exchange, steps=2, seed=1)
        place = write(exchange, tmp_path / "x")
        kept = (tmp_path / "x" / "manifest.json").read_bytes()
        full = faults.fail(lambda: OSError(28, "No space left on device"))
        with faults.armed("shard.written", full), pytest.raises(CheckpointError, match="No space left"):
            write(exchange, tmp_path / "x")
        assert (tmp_path / "x" / "manifest.json").read_bytes() == kept
        verify(place)
        assert len(list((tmp_path / "x").glob("data-*"))) == 1
        write(exchange, tmp_path / "x")
        assert len(list((tmp_path / "x").glob("data-*"))) == 1
        exchange.close()


def test_damage_is_named_when_shards_read(tmp_path: Path) -> None:
    with threads(2) as servers:
        exchange = connect([s.address for s in servers])
        train(exchange, steps=2, seed=1)
        place = write(exchange, tmp_path / "x")
        file = sorted((tmp_path / "x").glob("data-*/table-*"))[0]
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        with pytest.raises(CheckpointError, match="damaged") as caught:
            exchange.rows.read(place)
        assert file.name in caught.value.where
        with pytest.raises(CheckpointError, match="has no checkpoint"):
            exchange.rows.read(str(tmp_path / "nothing"))
        exchange.close()


def test_a_cut_is_written_once_and_the_newest_only(tmp_path: Path) -> None:
    with threads(1) as servers:
        exchange = connect([servers[0].address])
        train(exchange, steps=1, seed=1)
        old, new = exchange.rows.cut(), exchange.rows.cut()
        with pytest.raises(StoreError, match="has no cut"):
            write_checkpoint(str(tmp_path / "a"), Checkpoint({}, {}, {}, (), rows=old.write))
        write_checkpoint(str(tmp_path / "b"), Checkpoint({}, {}, {}, (), rows=new.write))
        with pytest.raises(StoreError, match="has no cut"):
            write_checkpoint(str(tmp_path / "c"), Checkpoint({}, {}, {}, (), rows=new.write))
        assert exchange._shards.ask(0, MessageKind.JOB, [b"{}"]).result()
        exchange.close()


@pytest.mark.parametrize("mode", ["sync", "hybrid"])
def test_a_new_generation_finds_shards_as_new(mode: str) -> None:
    tables = [Table("t", dim=2, optimizer=Adam(lr=0.1))]
    wanted = [LookupRequest(0, np.arange(9, dtype=np.uint64), np.array([0, 9], np.int64))]
    with threads(2) as servers:
        addresses = [s.address for s in servers]
        old = [connect(addresses, heartbeat=5.0, tables=tables, mode=mode, rank=r, world=2) for r in range(2)]
        lookup = old[0].lookup(wanted, create=True)
        lookup.result()
        old[0].apply(lookup, [np.ones((9, 2), np.float32)], lr_scale=1.0)
        assert eventually(lambda: not old[0]._shards._calls, 10)
        sent: Future[None] = Future()  # rank 1 dies when its share has reached one shard of two
        one_shard = partial(
            old[1]._shards.send, 0, MessageKind.UPDATE, pack([]), lambda *_: sent.set_result(None), step=0
        )
        old[1]._shards.post(one_shard)
        sent.result(10)
        new = connect(addresses, heartbeat=5.0, tables=tables, mode=mode, rank=0, world=2, generation=1)
        assert new.telemetry.statistics().rows == 0
        with pytest.raises(StoreError, match="a newer group of workers"):
            old[1].telemetry.statistics()
        with pytest.raises(ConfigError, match="generation 1 of the workers is already connected"):
            connect(addresses, heartbeat=5.0, tables=tables, mode=mode, rank=1, world=2)
        other = connect(addresses, heartbeat=5.0, tables=tables, mode=mode, rank=1, world=2, generation=1)
        new.lookup(wanted, create=True).result()
        for one in (new, other):
            one.apply(Lookup(wanted), [np.ones((9, 2), np.float32)], lr_scale=1.0)
        new.flush()
        other.flush()
        assert new.telemetry.statistics().rows == 9
        steps = {float(c.state[0, -1]) for _, c in new.rows.cut(still=True)}
        assert steps == ({1.0} if mode == "sync" else {2.0})
        for one in (new, other):
            one.close()
        for one in old:
            one._shards._loop.stop()


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (MessageKind.CUT, {}),
        (MessageKind.CUT, {"number": "1"}),
        (MessageKind.READ, {"url": 3}),
        (MessageKind.WRITE, {"url": "x", "folder": "../x", "number": 1}),
        (MessageKind.WRITE, {"url": "x", "folder": "data-00000000", "number": None}),
        (MessageKind.WRITE, {"url": "x", "folder": "data-00000000", "number": True}),
        (MessageKind.CUT, {"number": 1, "delta": 1}),
        (MessageKind.CUT, {"number": 1, "since": "1"}),
        (MessageKind.PUT_BACK, {}),
        (MessageKind.READ, {"url": "x", "number": 1.5}),
    ],
)
def test_an_impossible_request_is_refused_and_harms_nothing(
    kind: MessageKind, asked: dict[str, object]
) -> None:
    with threads(1) as servers:
        exchange = connect([servers[0].address])
        with pytest.raises(StoreError):
            exchange._shards.ask(0, kind, [pack_text(asked)]).result(10)
        train(exchange, steps=1, seed=1)
        exchange.close()


def test_a_job_that_a_restarted_shard_does_not_know_is_an_error() -> None:
    with threads(1) as servers:
        exchange = connect([servers[0].address])
        with pytest.raises(StoreError, match="neither writing nor reading a snapshot"):
            exchange.rows._check([exchange.rows._result(0, {})])
        exchange.close()


def use(exchange: Exchange, seed: int, rows: int = 1800) -> None:
    """One step on random ids out of many."""
    rng = np.random.default_rng(seed)
    wanted = [request(0, rng.choice(90_000, rows, replace=False).tolist(), [seed]), request(1, [seed])]
    lookup = exchange.lookup(wanted, create=True)
    lookup.result()
    exchange.apply(lookup, [np.ones((rows + 1, 4), np.float32), np.ones((1, 17), np.float32)], lr_scale=1.0)
    exchange.flush()


def save(exchange: Exchange, series: Series, step: int, *, full: bool = False) -> bool:
    """Write a delta if possible; return whether it was one."""
    cut = exchange.rows.cut(delta=not full and series.followable(step))
    try:
        series.write(step, Checkpoint({}, {}, {}, (), rows=cut.write, deleted=cut.deleted))
    except SatrapError:
        cut.put_back()
        raise
    return cut.deleted is not None


def rows_in(series: Series, step: int) -> dict[str, tuple[np.ndarray, ...]]:
    whole = local()
    whole.rows.read(series.place(step))
    found = contents(whole)
    whole.close()
    return found


def assert_saved(series: Series, held: dict[int, dict[str, tuple[np.ndarray, ...]]]) -> None:
    for step, tables in held.items():
        found = rows_in(series, step)
        assert found.keys() == tables.keys()
        for name, columns in tables.items():
            for x, y in zip(columns, found[name], strict=True):
                np.testing.assert_array_equal(x, y)


@pytest.mark.cluster
@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_deltas_of_shards_that_evict(shards: int, tmp_path: Path) -> None:
    """Each step's chain is what the shards held then, whoever reads it; compacted and in other files, too."""
    series, held = Series(str(tmp_path), keep=9), {}
    with threads(shards) as servers:
        exchange = connect([s.address for s in servers], memory=520_000 * shards, eviction=Eviction())
        for step in range(1, 7):
            use(exchange, step)
            assert save(exchange, series, step, full=step == 5) == (step not in (1, 5))
            held[step] = contents(exchange)
        assert exchange.telemetry.statistics().tables["a"].evicted > 100
        exchange.close()
    members = [open_chain(series.place(step)).members[-1] for step in held]
    assert any(len(ids) for member in members for ids in read_deleted(*member).values())
    assert_saved(series, held)
    for readers in (1, 2, 4):
        with threads(readers) as servers:
            exchange = connect([s.address for s in servers])
            exchange.rows.read(series.place(4))
            for name, columns in held[4].items():
                for x, y in zip(columns, contents(exchange)[name], strict=True):
                    np.testing.assert_array_equal(x, y)
            exchange.close()
    reshard_everywhere(series.url, 2)
    compact(series.place(3))
    assert_saved(series, held)
    for step in held:
        series.verify(step)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("raised", "point", "failing"),
    covering(
        [OSError, MemoryError, RuntimeError, KeyError, SystemExit],
        [("shard.chunk", 2), ("shard.written", 1), ("shard.written", 2)],
    ),
)
def test_a_delta_that_one_shard_could_not_write_is_in_the_next(
    point: str, failing: int, raised: type[BaseException], tmp_path: Path
) -> None:
    """Whatever was raised: the client hears of it."""
    series = Series(str(tmp_path), keep=9)
    with threads(2) as servers:
        exchange = connect([s.address for s in servers], **SMALL)
        use(exchange, 1)
        save(exchange, series, 1)
        use(exchange, 2)
        surprise = faults.fail(lambda: raised("by surprise"))
        with faults.armed(point, surprise, at=failing), pytest.raises(CheckpointError) as caught:
            save(exchange, series, 2)
        assert raised.__name__ in caught.value.what
        assert "by surprise" in caught.value.what
        use(exchange, 3)
        assert save(exchange, series, 3)
        assert_saved(series, {3: contents(exchange)})
        link = series.manifest(3).delta
        assert link is not None
        assert (link.number, link.previous) == (1, "step-00000001")
        exchange.close()


@pytest.mark.parametrize("delta", [None, True])
@pytest.mark.parametrize("point", ["disk.make_folder", "shard.chunk", "shard.written"])
def test_after_a_failed_save_no_shard_copies_rows_any_more(
    point: str, delta: bool | None, tmp_path: Path
) -> None:
    """The save fails before a shard heard of it, amid its rows, or after them."""
    with threads(2) as servers:
        exchange = connect([s.address for s in servers], **SMALL)
        use(exchange, 1)
        exchange.rows.cut(delta=False).put_back()
        groups = [group for server in servers for group in server.service.store.groups]
        gc.disable()  # a cycle of references would be found some time
        try:
            cut = exchange.rows.cut(delta=delta)
            assert all(len(group._cuts) == 1 for group in groups)
            full = faults.fail(lambda: OSError(28, "No space left on device"))
            with faults.armed(point, full, every=1), pytest.raises(CheckpointError, match="No space"):
                write_checkpoint(str(tmp_path / "x"), Checkpoint({}, {}, {}, (), rows=cut.write))
            cut.put_back()
            assert eventually(lambda: not any(len(group._cuts) for group in groups), 20)
        finally:
            gc.enable()
        exchange.close()


def test_a_full_cut_that_could_not_be_written_is_followed_by_a_full_one(tmp_path: Path) -> None:
    series = Series(str(tmp_path), keep=9)
    with threads(2) as servers:
        exchange = connect([s.address for s in servers])
        use(exchange, 1)
        save(exchange, series, 1)
        full = faults.fail(lambda: OSError(28, "No space left on device"))
        with faults.armed("shard.written", full), pytest.raises(CheckpointError):
            save(exchange, series, 2, full=True)
        use(exchange, 2)
        assert not save(exchange, series, 3)
        assert_saved(series, {3: contents(exchange)})
        exchange.close()


def test_shards_of_which_one_was_restarted_write_all_rows(tmp_path: Path) -> None:
    """It has other rows now than those that changed since the cut; so does a client that knows of no cut."""
    series = Series(str(tmp_path), keep=9)
    with threads(2) as servers:
        addresses = [s.address for s in servers]
        exchange = connect(addresses)
        use(exchange, 1)
        save(exchange, series, 1)
        use(exchange, 2)
        snapshots = servers[1].service._cuts.snapshots
        snapshots.since = None
        assert not save(exchange, series, 2)
        use(exchange, 3)
        assert save(exchange, series, 3)
        other = connect(addresses)
        assert not save(other, series, 4)
        assert not save(exchange, series, 5)  # the cut before was another client's
        assert_saved(series, {5: contents(exchange)})
        exchange.close()
        other.close()


def test_deltas_go_on_from_what_was_read_only_where_that_is_all(tmp_path: Path) -> None:
    series = Series(str(tmp_path), keep=9)
    with threads(3) as servers:
        exchange = connect([s.address for s in servers])
        many = [request(0, list(range(3000)), list(range(3000))), request(1, [1])]
        exchange.lookup(many, create=True).result()
        for step in (1, 2):
            use(exchange, step, 50)
            save(exchange, series, step)
        exchange.close()
    for step, (fits, empty) in enumerate([(True, True), (False, True), (True, False)], 3):
        with threads(2) as servers:
            exchange = connect([s.address for s in servers], **({} if fits else SMALL))
            if not empty:
                exchange.lookup([request(0, [2**60], []), request(1, [])], create=True).result()
            series.read(2)
            exchange.rows.read(series.place(2), follow=True)
            use(exchange, step)
            assert save(exchange, series, step) == (fits and empty)
            assert_saved(series, {step: contents(exchange)})
            exchange.close()
    here = local()
    series.read(2)
    here.rows.read(series.place(2), follow=True)
    use(here, 9)
    assert save(here, series, 9)
    assert_saved(series, {9: contents(here)})
    here.close()


@pytest.mark.cluster
@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("budget", [{}, SMALL], ids=["all", "evicting"])
def test_deltas_go_on_after_a_shard_came_back_from_its_journal(
    budget: dict[str, Any], written: bool, tmp_path: Path
) -> None:
    """Killed after a delta was committed, or between its cut and its files."""
    series, folder = Series(str(tmp_path / "s"), keep=9), tmp_path / "journal"
    with threads(1) as [second]:
        with ShardServer("127.0.0.1:0", journal=folder) as first:
            exchange = connect([first.address, second.address], **budget)
            for step in (1, 2):
                use(exchange, step)
                save(exchange, series, step)
            use(exchange, 3)
            cut = exchange.rows.cut(delta=True)
            state = Checkpoint({}, {}, {}, (), rows=cut.write, deleted=cut.deleted)
            if written:
                series.write(3, state)
        before = f"step-0000000{3 if written else 2}"
        with ShardServer(first.address, journal=folder) as again:
            assert str(again.recovery).startswith(f"snapshot {before}")
            if not written:
                with pytest.raises(StoreError, match="has no cut"):
                    series.write(3, state)
                cut.put_back()
            use(exchange, 4)
            assert save(exchange, series, 4)
            link = series.manifest(4).delta
            assert link is not None
            assert link.previous == before
            assert_saved(series, {4: contents(exchange)})
            exchange.close()


def test_a_shard_back_from_a_snapshot_that_no_delta_may_follow_writes_all_rows(tmp_path: Path) -> None:
    """Since the cut before, which a delta would follow, it does not know what changed."""
    series, folder = Series(str(tmp_path / "s"), keep=9), tmp_path / "journal"
    with ShardServer("127.0.0.1:0", journal=folder) as server:
        exchange = connect([server.address])
        use(exchange, 1)
        save(exchange, series, 1)
        use(exchange, 2)
        write(exchange, tmp_path / "apart")
    with ShardServer(server.address, journal=folder) as again:
        assert str(again.recovery).startswith("snapshot apart")
        use(exchange, 3)
        assert not save(exchange, series, 3)
        assert_saved(series, {3: contents(exchange)})
        exchange.close()


def test_after_state_is_taken_over_the_next_cut_is_full(tmp_path: Path) -> None:
    here = local(**SMALL)
    use(here, 1)
    place = write(here, tmp_path / "x")
    here.rows.cut(delta=False)
    assert here.rows.cut(delta=True).deleted is not None
    here.rows.read(place, exact=True)
    assert here.rows.cut(delta=True).deleted is None
    here.close()


def test_each_shard_writes_its_order_of_eviction_and_takes_it_back(tmp_path: Path) -> None:
    """With it the same rows go afterwards; without it, others."""
    found = {}
    with threads(2) as servers:
        exchange = connect([s.address for s in servers], **SMALL)
        for seed in range(8):
            use(exchange, seed)
        place = write(exchange, tmp_path / "x")
        files = {path.name for path in (tmp_path / "x").rglob("store*")}
        assert files == {"store.shard-0000.safetensors", "store.shard-0001.safetensors"}
        use(exchange, 9, 500)
        held = contents(exchange)
        exchange.close()
    for exact in (True, False):
        with threads(2) as servers:
            exchange = connect([s.address for s in servers], **SMALL)
            exchange.rows.read(place, exact=exact)
            use(exchange, 9, 500)
            found[exact] = contents(exchange)
            exchange.close()
    for table, columns in held.items():
        for mine, back in zip(columns, found[True][table], strict=True):
            np.testing.assert_array_equal(mine, back)
    assert any(not np.array_equal(held[table][0], found[False][table][0]) for table in held)


@pytest.mark.cluster
def test_real_processes_write_deltas(tmp_path: Path) -> None:
    series = Series(str(tmp_path), keep=9)
    with Process() as a, Process() as b, Process() as c:
        two = connect([a.address, b.address])
        for step in (1, 2, 3):
            use(two, step)
            assert save(two, series, step) == (step > 1)
        one = connect([c.address])
        series.read(3)
        one.rows.read(series.place(3), follow=True)
        assert_equal_contents(one, two)
        use(one, 4)
        assert save(one, series, 4)
        assert_saved(series, {3: contents(two), 4: contents(one)})
        one.close()
        two.close()
