"""What is decided about requests to the shards, in every case and without a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap.config import load
from satrap.errors import SatrapError, StoreError
from satrap.exchange.shard_map import ShardMap
from satrap.launch.cluster.actions import (
    Action,
    GiveOrder,
    KeepMap,
    MakeShardRoom,
    ReplyToRequest,
    RoleState,
    Say,
    StartServer,
    StopRole,
)
from satrap.launch.cluster.control_requests import ControlRequest
from satrap.launch.cluster.shard_requests import READY_SECONDS, ShardRequests, obstacles
from satrap.launch.launchers.launcher import Ended, Stop
from satrap.runtime.events import Ready
from satrap.train.resharding.requests import ReshardRequest, ReshardResult
from tests.launch.runs import make_recipe


class Play:
    """Requests to a run of two shards that trains."""

    def __init__(self, **why: str) -> None:
        self.requests = ShardRequests(ShardMap(2), **why)
        self.roles = {f"shard {n}": RoleState(f"shard {n}", f"h:{n}") for n in range(2)}
        self.now = 0.0

    def ask(self, command: str, shard: int = -1, by: str = "rows") -> list[Action]:
        refused = self.requests.ask(ControlRequest(command, command, shard, by))
        return refused or self.decide()

    def decide(self, seconds: float = 0.1) -> list[Action]:
        self.now += seconds
        actions = self.requests.decide(self.now, self.roles)
        if any(isinstance(action, MakeShardRoom) for action in actions):
            return self.requests.has_room(None, self.roles)
        return actions

    def moved(self, id: str, members: list[int], error: SatrapError | None = None) -> list[Action]:
        map = self.requests.map
        if error is None:
            map = map.after(np.array(members, np.uint16)[np.arange(4096) % len(members)], members)
        return self.requests.answered(
            ReshardResult(id, map, {0: 5}, {0: 50}, 3, 30, 2, 0.1, 1, 0.1, error), self.roles
        )


def replies(actions: list[Action]) -> list[Any]:
    return [action.answer for action in actions if isinstance(action, ReplyToRequest)]


def without_words(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Say | ReplyToRequest | KeepMap)]


def test_a_shard_joins_once_it_is_ready_and_the_map_is_kept() -> None:
    play = Play()
    assert without_words(play.ask("add")) == [StartServer("shard 2", fresh=True)]
    assert play.roles["shard 2"].aside
    assert play.decide() == []
    play.roles["shard 2"].heard(Ready("h:9"))
    assert play.decide() == [GiveOrder(ReshardRequest("add", (), {2: "h:9"}, 2))]
    assert not play.roles["shard 2"].aside
    done = play.moved("add", [0, 1, 2])
    assert without_words(done) == [GiveOrder(None)]
    assert [kept.map for kept in done if isinstance(kept, KeepMap)] == [play.requests.map]
    [answer] = replies(done)
    assert [one["address"] for one in answer["shards"]] == ["h:0", "h:1", "h:9"]
    assert answer["rows"] == 3


def test_a_drained_shard_is_released_once_its_rows_have_gone() -> None:
    play = Play()
    assert play.ask("drain", 0) == [GiveOrder(ReshardRequest("drain", (0,), {}, 2))]
    done = play.moved("drain", [1])
    assert without_words(done) == [GiveOrder(None), StopRole("shard 0", Stop.RELEASE)]
    assert play.roles["shard 0"].aside
    assert play.requests.map.members == [1]
    [error] = replies(play.ask("drain", 1))
    assert "the last shard cannot be drained" in str(error)


def test_a_shard_that_left_gives_its_number_to_the_next_once_it_has_ended() -> None:
    play = Play()
    play.ask("drain", 0)
    play.moved("drain", [1])
    assert without_words(play.ask("add")) == [StartServer("shard 2", fresh=True)]
    play = Play()
    play.ask("drain", 0)
    play.moved("drain", [1])
    play.roles["shard 0"].heard(Ended(0))
    assert without_words(play.ask("add")) == [StartServer("shard 0", fresh=True)]


@pytest.mark.parametrize("late", [True, False])
def test_a_shard_that_does_not_come_up_is_given_up(late: bool) -> None:
    play = Play()
    play.ask("add")
    if not late:
        play.roles["shard 2"].heard(Ended(1))
    done = play.decide(READY_SECONDS + 1 if late else 0.1)
    assert without_words(done) == ([StopRole("shard 2", Stop.KILL)] if late else [])
    [error] = replies(done)
    assert ("was not ready after 120 s" if late else "ended with exit code 1") in str(error)
    assert play.requests.map == ShardMap(2)
    assert play.ask("list") == [GiveOrder(ReshardRequest("list", survey=True, epoch=2))]


def test_a_move_that_failed_is_told_and_the_new_shard_ended() -> None:
    play = Play()
    play.ask("add")
    play.roles["shard 2"].heard(Ready("h:9"))
    play.decide()
    done = play.moved("add", [], StoreError("no room"))
    assert without_words(done) == [GiveOrder(None), StopRole("shard 2", Stop.KILL)]
    assert str(replies(done)[0]) == "no room"
    assert play.requests.map == ShardMap(2)


def test_requests_are_carried_out_one_after_another_and_epochs_only_grow() -> None:
    play = Play()
    assert play.ask("balance") == [GiveOrder(ReshardRequest("balance", epoch=2))]
    assert play.ask("list") == []
    assert play.moved("other", [0, 1]) == []
    play.moved("balance", [0, 1], StoreError("no room"))
    assert play.decide() == [GiveOrder(ReshardRequest("list", survey=True, epoch=3))]


def test_what_is_under_way_is_given_up_with_the_workers_and_the_rest_with_the_run() -> None:
    play = Play()
    play.ask("add")
    play.roles["shard 2"].heard(Ready("h:9"))
    play.decide()
    play.ask("balance")
    done = play.requests.give_up("all workers restart", play.roles)
    assert without_words(done) == [GiveOrder(None), StopRole("shard 2", Stop.KILL)]
    assert play.roles["shard 2"].aside
    assert "not all rows were moved: all workers restart" in str(replies(done)[0])
    assert play.requests.map == ShardMap(2)
    [error] = replies(play.requests.give_up("the run has ended", play.roles, final=True))
    assert "the run has ended" in str(error)
    assert play.requests.give_up("twice", play.roles, final=True) == []


@pytest.mark.parametrize(
    ("command", "shard", "what"),
    [("drain", 2, "unknown shard 2"), ("swap", -1, "unknown request 'swap'")],
)
def test_impossible_requests_are_refused(command: str, shard: int, what: str) -> None:
    [error] = replies(Play().ask(command, shard))
    assert what in str(error)


@pytest.mark.parametrize(("command", "by"), [("balance", "heat"), ("drain", "traffic"), ("balance", "")])
def test_a_measure_that_is_not_known_or_not_meant_for_the_request_is_refused(command: str, by: str) -> None:
    [error] = replies(Play().ask(command, 0, by))
    assert f"rows cannot move by {by!r}" in str(error)
    assert "rows, bytes, traffic" in str(error)


@pytest.mark.parametrize("by", ["rows", "bytes", "traffic"])
def test_the_measure_comes_with_the_order_and_a_balance_without_gain_says_so_and_keeps_no_map(
    by: str,
) -> None:
    play = Play()
    assert play.ask("balance", by=by) == [GiveOrder(ReshardRequest("balance", epoch=2, by=by))]
    traffic = {0: 0.75, 1: 0.25}
    done = play.requests.answered(ReshardResult("balance", play.requests.map, traffic=traffic), play.roles)
    assert not [action for action in done if isinstance(action, KeepMap)]
    [answer] = replies(done)
    assert (
        f"no rows moved, because moving whole buckets would hardly balance the {by} of the shards"
        in answer["said"]
    )
    assert [one["traffic"] for one in answer["shards"]] == [0.75, 0.25]
    assert (answer["rows"], answer["buckets"]) == (0, 0)
    assert play.ask("list") == [GiveOrder(ReshardRequest("list", survey=True, epoch=3))]


def test_a_run_that_cannot_says_why() -> None:
    for command in ("list", "add", "drain", "balance"):
        assert "because" in str(replies(Play(fixed="because").ask(command, 0))[0])
    for command, refused in (("add", 1), ("drain", 1), ("balance", 0), ("list", 0)):
        assert len(replies(Play(foreign="because").ask(command, 0))) == refused


@pytest.mark.parametrize(
    ("settings", "moves", "starts"),
    [
        (["cluster.exchange=servers"], "", ""),
        ([], "no shard servers", ""),
        (["cluster.exchange=servers", "training.mode=async"], "async", ""),
        (["cluster.exchange=servers", "cluster.workers=2", "cluster.embedding_workers=1"], "embedding", ""),
        (["cluster.exchange=servers", "cluster.addresses=[127.0.0.1:5]"], "", "did not start its shards"),
        (["cluster.exchange=servers", "cluster.launcher=ray"], "", ""),
    ],
)
def test_obstacles_are_those_of_the_recipe(
    tmp_path: Path, settings: list[str], moves: str, starts: str
) -> None:
    found = obstacles(load(make_recipe(tmp_path), settings))
    assert all((part in why) if part else not why for part, why in zip((moves, starts), found, strict=True))


def test_a_move_that_stops_halfway_keeps_its_map_and_the_shard_that_has_rows_by_then() -> None:
    play = Play()
    play.ask("add")
    play.roles["shard 2"].heard(Ready("h:9"))
    play.decide()
    part = ShardMap(2).after(np.where(np.arange(4096) < 9, 2, 0).astype(np.uint16), [0, 1, 2], epoch=5)
    done = play.requests.answered(
        ReshardResult("add", part, carried=3, error=StoreError("no room")), play.roles
    )
    assert without_words(done) == [GiveOrder(None)]
    assert [kept.map for kept in done if isinstance(kept, KeepMap)] == [part]
    assert str(replies(done)[0]) == "no room"
    assert play.requests.map == part
    assert play.ask("balance") == [GiveOrder(ReshardRequest("balance", epoch=6))]
