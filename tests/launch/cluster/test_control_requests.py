"""Requests, orders and answers as files: whole, once, and only while a run is at work."""

from __future__ import annotations

import json
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from satrap.errors import ConfigError, StoreError
from satrap.exchange.shard_map import ShardMap
from satrap.launch.cluster import control_requests
from satrap.launch.cluster.control_requests import ControlRequest, FolderDesk, Mailbox, MapLog
from satrap.launch.cluster.worker_events import RowsMoved
from satrap.launch.folder.run_folder import LOCK
from satrap.runtime.events import Event, decode, encode
from satrap.train.resharding.requests import ReshardRequest, ReshardResult


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_requests, "LOOK_SECONDS", 0.0)


def test_a_request_is_taken_once_and_answered_once(tmp_path: Path) -> None:
    user, run = Mailbox(tmp_path / "requests"), Mailbox(tmp_path / "requests")
    with run.open():
        asked = user.ask("drain", 3)
        assert list(run.requests()) == [ControlRequest(asked, "drain", 3)]
        assert list(run.requests()) == []
        assert user.answer(asked) is None
        run.reply(asked, {"said": "done"})
        assert user.answer(asked) == {"said": "done"}
        second = user.ask("add")
        run.reply(second, StoreError("no room", why="small", fix="more"))
        with pytest.raises(StoreError, match="no room") as caught:
            user.answer(second)
        assert (caught.value.why, caught.value.fix) == ("small", "more")


def test_without_a_run_at_work_nobody_is_asked_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    user = Mailbox(tmp_path / "requests")
    with pytest.raises(ConfigError, match="no run in this folder accepts requests"):
        user.ask("list")
    with Mailbox(tmp_path / "requests").open():
        asked = user.ask("list")
    with pytest.raises(ConfigError, match="ended before it answered"):
        user.answer(asked)
    with Mailbox(tmp_path / "requests").open():
        assert list(Mailbox(tmp_path / "requests").requests()) == []  # asked of an earlier launcher
        (tmp_path / "requests" / "x.ask.json").write_text("{")
        assert list(Mailbox(tmp_path / "requests").requests()) == []
        with pytest.raises(ConfigError, match="another run"), Mailbox(tmp_path / "requests").open():
            pass


def test_who_asks_does_not_keep_a_run_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts at the instant at which somebody looks whether one is at work; a dead one left its files."""
    folder, close, starting = tmp_path / "requests", os.close, list[Future[None]]()
    folder.mkdir()
    for name in (LOCK, "at_work"):
        (folder / name).touch()

    def start() -> None:
        with Mailbox(folder).open():
            pass

    with ThreadPoolExecutor(1) as pool:

        def close_late(descriptor: int) -> None:
            if not starting:
                starting.append(pool.submit(start))
                wait(starting, 0.3)
            close(descriptor)

        monkeypatch.setattr(os, "close", close_late)
        with pytest.raises(ConfigError, match="no run in this folder accepts requests"):
            Mailbox(folder).ask("list")
        starting[0].result(20)


def test_a_request_of_another_version_is_refused_and_one_that_asks_for_less_is_taken(tmp_path: Path) -> None:
    user, run = Mailbox(tmp_path), Mailbox(tmp_path)
    with run.open():
        old = {"id": "old", "command": "balance", "number": -1}
        (tmp_path / "old.ask.json").write_text(json.dumps(old))
        (tmp_path / "new.ask.json").write_text(json.dumps({**old, "id": "new", "pace": "slow"}))
        assert list(run.requests()) == [ControlRequest("old", "balance")]
        with pytest.raises(ConfigError, match="different versions of satrap"):
            user.answer("new")
        assert user.answer("old") is None
        user.ask("balance", by="bytes")
        assert [request.by for request in run.requests()] == ["bytes"]


def test_workers_find_an_order_until_they_have_answered_it(tmp_path: Path) -> None:
    box, reports = Mailbox(tmp_path), list[Event]()
    desk = FolderDesk(box, reports.append)
    assert desk.order() is None
    order = ReshardRequest("a", (1,), {2: "h:5"}, 7, by="traffic")
    box.give(order)
    assert desk.order() == desk.order() == order
    desk.answer(ReshardResult("a", ShardMap(2)))
    assert desk.order() is None
    assert [event.moved.id for event in reports if isinstance(event, RowsMoved)] == ["a"]
    box.withdraw()
    box.withdraw()
    assert box.order() is None


@pytest.mark.parametrize("error", [None, StoreError("no room", fix="more")])
def test_what_has_become_of_an_order_survives_the_way_to_the_launcher(error: StoreError | None) -> None:
    map = ShardMap(2).after(np.arange(4096) // 100 % 3, [0, 1, 2])
    told = RowsMoved(
        ReshardResult("a", map, {0: 5, 2: 6}, {0: 50, 2: 60}, 4, 40, 9, 0.5, 3, 1.5, error, {0: 0.25})
    )
    found: Any = decode(encode(told))
    assert isinstance(found, RowsMoved)
    assert (found.moved.map, found.moved.rows, found.moved.bytes) == (map, {0: 5, 2: 6}, {0: 50, 2: 60})
    assert str(found.moved.error) == str(error)
    assert (found.moved.seconds, found.moved.traffic) == (0.5, {0: 0.25})


def test_a_resumed_run_has_the_map_of_its_last_move_under_an_epoch_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "shards.json"
    log = MapLog.of(file, 2, resume=True)
    assert log.map == ShardMap(2)
    assert not file.exists()
    map = log.map.after(np.arange(4096) // 100 % 3, [0, 1, 2])
    log.keep(map, {"command": "add"})
    again = MapLog.of(file, 2, resume=True)
    assert (again.map.digest, again.map.epoch) == (map.digest, map.epoch + 1)
    assert json.loads(file.read_text())["entries"] == again.entries
    assert again.entries[0]["command"] == "add"
    assert MapLog.of(file, 3, resume=True).map == ShardMap(3)  # the recipe says otherwise now
    assert MapLog.of(file, 2, resume=False).map == ShardMap(2)


def test_files_are_looked_for_every_fifth_of_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10.0
    monkeypatch.setattr(control_requests, "LOOK_SECONDS", 0.25)
    monkeypatch.setattr(control_requests, "time", SimpleNamespace(monotonic=lambda: now))
    box = Mailbox(tmp_path)
    desk = FolderDesk(box, print)
    with box.open():
        order = ReshardRequest("a")
        box.give(order)
        found = []
        for now in (10.0, 10.125, 10.25, 10.375, 10.5):  # noqa: B007 - the clock reads `now`
            box.ask("list")
            found.append((len(list(box.requests())), desk.order()))
    assert found == [(1, order), (0, None), (2, order), (0, None), (2, order)]


def test_a_folder_with_an_answer_that_nobody_has_read_stays(tmp_path: Path) -> None:
    box = Mailbox(tmp_path / "requests")
    with box.open():
        box.reply(box.ask("list"), {"said": "done"})
        box.ask("add")
    [left] = box.folder.iterdir()
    assert left.name.endswith(".answer.json")
    with box.open():
        assert not left.exists()
    assert not box.folder.exists()
