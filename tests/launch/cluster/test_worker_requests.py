"""What is decided about another number of workers, in every case and without a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from satrap.config import load
from satrap.errors import ConfigError, ExchangeError
from satrap.launch.cluster.actions import (
    Action,
    ChangeWorkers,
    MakeRoom,
    ReplyToRequest,
    RoleState,
    Say,
    StopRole,
)
from satrap.launch.cluster.control_requests import ControlRequest
from satrap.launch.cluster.worker_requests import (
    WorkerRequests,
    as_asked,
    begun_with,
    keep_workers,
    with_workers,
)
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.launchers.launcher import Stop
from tests.launch.runs import make_recipe

ROLES = [RoleState("worker 0"), RoleState("worker 1")]


def training() -> WorkerRequests:
    """Two workers that train."""
    requests = WorkerRequests(2)
    requests.stepped()
    return requests


def ask(requests: WorkerRequests, number: int) -> list[Action]:
    return requests.ask(ControlRequest(f"to {number}", "workers", number)) or requests.decide(7.0)


def answer(actions: list[Action]) -> Any:
    [found] = [action.answer for action in actions if isinstance(action, ReplyToRequest)]
    return found


def quiet(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Say | ReplyToRequest)]


def test_workers_save_and_end_and_others_go_on_and_step_before_the_answer() -> None:
    requests = training()
    assert ask(requests, 3) == [MakeRoom(3)]
    assert quiet(requests.has_room(None, ROLES)) == [StopRole(f"worker {i}", Stop.SAVE) for i in range(2)]
    assert requests.stopping
    assert requests.decide(8.0) == []
    requests.restarted()
    assert requests.saved(40) == [ChangeWorkers(3)]
    assert not requests.stopping
    assert requests.decide(9.0) == []
    requests.stepped()
    found = answer(requests.decide(9.5))
    assert (found["before"], found["workers"], found["step"], found["seconds"]) == (2, 3, 40, 2.5)
    assert ask(requests, 2) == [MakeRoom(2)]


def test_nothing_begins_before_the_workers_train() -> None:
    requests = WorkerRequests(2)
    assert ask(requests, 3) == []
    requests.stepped()
    assert requests.decide(8.0) == [MakeRoom(3)]


@pytest.mark.parametrize(("number", "why"), [(2, "already has 2 workers"), (0, "with 0 workers")])
def test_impossible_numbers_are_refused(number: int, why: str) -> None:
    assert why in str(answer(ask(training(), number)))


def test_one_request_at_a_time() -> None:
    requests = training()
    ask(requests, 3)
    assert "another request" in str(answer(ask(requests, 4)))


def test_without_room_the_workers_go_on() -> None:
    requests = training()
    ask(requests, 3)
    assert "no room" in str(answer(requests.has_room(ConfigError("no room"), ROLES)))
    assert not requests.stopping
    assert requests.workers == 2


def test_what_is_under_way_is_given_up_when_all_start_again_and_what_waits_when_the_run_ends() -> None:
    requests = training()
    ask(requests, 3)
    assert requests.give_up("restart") == []  # not begun yet
    requests.has_room(None, ROLES)
    error = answer(requests.give_up("restart"))
    assert isinstance(error, ExchangeError)
    assert "continues with 2 workers: restart" in str(error)
    requests.ask(ControlRequest("again", "workers", 3))
    assert "the run has ended" in str(answer(requests.give_up("the run has ended", final=True)))
    assert requests.give_up("twice", final=True) == []


@pytest.mark.parametrize(
    ("settings", "number", "why"),
    [
        (["data.global_batch=true"], 3, "not divisible by 3 workers"),
        (["cluster.loaders=2"], 1, "cluster.loaders is 2"),
        (["dense.mesh={data: 1, tensor: 2}"], 4, "a part of the network"),
        (["cluster.metrics_port=9000"], 3, "metrics ports"),
        (["dense.sharded=true", "dense.shard_size=2"], 3, "dense.shard_size"),
    ],
)
def test_recipes_that_allow_no_such_number(
    tmp_path: Path, settings: list[str], number: int, why: str
) -> None:
    recipe = load(make_recipe(tmp_path), ["cluster.exchange=servers", "cluster.workers=2", *settings])
    with pytest.raises(ConfigError, match=why):
        with_workers(recipe, number, 2)


def test_the_run_folder_knows_the_number_for_those_who_repeat_the_recipe(tmp_path: Path) -> None:
    settings = ["cluster.exchange=servers", "cluster.workers=2"]
    recipe = load(make_recipe(tmp_path), settings)
    folder = RunFolder.claim(recipe, tmp_path / "run")
    assert as_asked(recipe, folder) is recipe
    assert begun_with(folder, recipe) == 2
    three = with_workers(recipe, 3, 2)
    keep_workers(folder, 2, three)
    assert folder.recipe().sections.cluster.workers == 3
    assert as_asked(recipe, folder).resolved() == folder.recipe().resolved()
    assert begun_with(folder, folder.recipe()) == 2
    for other in (
        load(tmp_path / "clicks.yaml", [settings[0], "cluster.workers=4"]),
        folder.recipe(["cluster.workers=2"]),
    ):
        assert as_asked(other, folder) is other
    keep_workers(folder, 2, recipe)
    assert not folder.workers_file.exists()
