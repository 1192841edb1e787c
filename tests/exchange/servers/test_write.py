"""Rows that are to be kept without a cut, such as a trained model's: whoever holds them writes them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from satrap.checkpoint import Checkpoint, Series, verify, write_checkpoint
from satrap.checkpoint.files.storage import Storage
from satrap.errors import CheckpointError, StoreError
from satrap.exchange import Exchange
from satrap.exchange.servers import ShardServer
from satrap.rpc.wire.frames import Header, MessageKind
from satrap.rpc.wire.text import pack_text, unpack_text
from tests import faults
from tests.cluster.runs import eventually
from tests.contract.parties import Process, assert_equal_contents, connect, local, threads, train
from tests.exchange.servers.journaled import Bench, traffic


def keep(exchange: Exchange, place: str | Path) -> str:
    write_checkpoint(str(place), Checkpoint({}, {}, {}, (), rows=exchange.rows.cut(still=True).write))
    return str(place)


def assert_kept(place: str, exchange: Exchange) -> None:
    verify(place)
    whole = local()
    whole.rows.read(place)
    assert_equal_contents(whole, exchange)
    whole.close()


def exported(servers: list[ShardServer]) -> list[int]:
    return [server.statistics().requests["export"] for server in servers]


def test_each_shard_writes_its_own_rows_and_sends_none(tmp_path: Path) -> None:
    with threads(3) as servers:
        exchange = connect([s.address for s in servers])
        train(exchange, steps=4, seed=2)
        place = keep(exchange, tmp_path / "x")
        assert exported(servers) == [0, 0, 0]
        files = {path.name.split(".")[1] for path in (tmp_path / "x").glob("data-*/table-*")}
        assert files == {"shard-0000", "shard-0001", "shard-0002"}
        assert_kept(place, exchange)
        exchange.close()


def test_shards_that_do_not_see_the_place_send_their_rows() -> None:
    """Every process has a memory file system of its own."""
    with Process() as a, Process() as b:
        exchange = connect([a.address, b.address])
        train(exchange, steps=4, seed=2)
        try:
            assert_kept(keep(exchange, "memory://model-of-processes"), exchange)
        finally:
            MemoryFileSystem.store.clear()
            MemoryFileSystem.pseudo_dirs[:] = [""]
            exchange.close()


@pytest.mark.parametrize("blind", [0, 1])
def test_one_shard_that_does_not_see_the_place_has_all_rows_sent(blind: int, tmp_path: Path) -> None:
    with threads(2) as servers:
        exchange = connect([s.address for s in servers])
        train(exchange, steps=4, seed=2)
        answers, exists = iter([blind != 0, blind != 1]), Storage.exists

        def some(storage: Storage, name: str) -> bool:
            return next(answers) if name.startswith("data-") else exists(storage, name)

        with mock.patch.object(Storage, "exists", some):
            place = keep(exchange, tmp_path / "x")
        [data] = (tmp_path / "x").glob("data-*")
        assert not list(data.glob("*.shard-*")), "what the other one wrote is no part of it"
        assert min(exported(servers)) > 0
        assert_kept(place, exchange)
        exchange.close()


def test_a_cut_and_the_changes_since_it_stay_as_they_are(tmp_path: Path) -> None:
    """The best weights are kept while a snapshot waits to be written; the next one can still be a delta."""
    with threads(2) as servers:
        exchange, before = connect([s.address for s in servers]), local()
        series = Series(str(tmp_path / "series"))
        for one in (exchange, before):
            train(one, steps=3, seed=1)
        cut = exchange.rows.cut(delta=False)
        train(exchange, steps=1, seed=2)
        place = keep(exchange, tmp_path / "best")
        series.write(1, Checkpoint({}, {}, {}, (), rows=cut.write))
        assert_kept(place, exchange)
        assert_kept(series.place(1), before)
        delta = exchange.rows.cut(delta=True)
        assert delta.deleted is not None
        series.write(2, Checkpoint({}, {}, {}, (), rows=delta.write, deleted=delta.deleted))
        assert_kept(series.place(2), exchange)
        for one in (exchange, before):
            one.close()


def test_a_shard_that_cannot_write_is_an_error_and_the_older_model_stays(tmp_path: Path) -> None:
    with threads(2) as servers:
        exchange, old = connect([s.address for s in servers]), local()
        for one in (exchange, old):
            train(one, steps=2, seed=1)
        place = keep(exchange, tmp_path / "x")
        train(exchange, steps=2, seed=2)
        full = faults.armed("shard.chunk", faults.fail(lambda: OSError(28, "No space left on device")), at=2)
        with full, pytest.raises(CheckpointError, match="No space left"):
            keep(exchange, place)
        assert_kept(place, old)
        assert_kept(keep(exchange, place), exchange)
        for one in (exchange, old):
            one.close()


def test_a_shard_that_lost_the_job_is_asked_again(tmp_path: Path) -> None:
    with threads(2) as servers, ThreadPoolExecutor(1) as pool:
        exchange = connect([s.address for s in servers])
        train(exchange, steps=4, seed=2)
        begun, on = threading.Event(), threading.Event()

        def hold(_: str) -> None:
            begun.set()
            assert on.wait(20)

        with faults.armed("shard.chunk", hold, at=1):
            keeping = pool.submit(keep, exchange, tmp_path / "x")
            assert begun.wait(20)
            for server in servers:  # as coming back from a journal does
                server.service._cuts.still.stop()
            on.set()
            place = keeping.result(60)
        assert_kept(place, exchange)
        exchange.close()


def test_a_shard_back_from_its_journal_has_no_such_job_and_all_its_rows(tmp_path: Path) -> None:
    bench, model = Bench(tmp_path / "journal"), tmp_path / "model"
    messages = traffic(np.random.default_rng(2), 1, 40)
    for header, parts in messages:
        bench.send(header, parts)
    place, before = bench.sessions.known[1].next, bench.rows()
    asked = {"url": str(model), "folder": "data-00000000", "shown": ""}
    (model / "data-00000000").mkdir(parents=True)
    bench.send(Header(MessageKind.SAVE, 1, 1, place), [pack_text(asked)])
    assert eventually(lambda: bool(bench.service._cuts.still.result()["done"]), 20)
    bench.die()
    for path in (model / "data-00000000").iterdir():
        path.unlink()
    bench = Bench(tmp_path / "journal")
    answer = bench.send(Header(MessageKind.JOB, 1, 1, place + 1), [pack_text({"save": True})])
    assert answer is not None
    assert unpack_text(answer.parts[0]) == {"done": False, "lost": True}
    assert list((model / "data-00000000").iterdir()) == []
    assert bench.rows() == before
    bench.die()


@pytest.mark.parametrize(
    "asked",
    [
        {"url": "x", "folder": "../x", "shown": ""},
        {"url": 1, "folder": "data-00000000", "shown": ""},
        {"url": "x", "folder": "data-00000000"},
    ],
)
def test_an_impossible_request_is_refused(asked: dict[str, object]) -> None:
    with threads(1) as servers:
        exchange = connect([servers[0].address])
        with pytest.raises(StoreError):
            exchange._shards.ask(0, MessageKind.SAVE, [pack_text(asked)]).result(10)
        exchange.close()
