"""Roles that die or stop: one clear error in seconds, and no process is left."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from satrap.checkpoint import Series
from satrap.config import load
from satrap.launch.cluster.supervisor import LOADER_RESTARTS
from tests.cli.command import process, satrap
from tests.cluster.runs import PATIENCE, Started, children, eventually

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("name", ["shard 1", pytest.param("worker 0", marks=pytest.mark.slow), "worker 1"])
def test_a_killed_role_is_named_and_takes_all_others_with_it(tmp_path: Path, name: str) -> None:
    deadline = 2 * PATIENCE  # a death is noticed as such, not by silence
    with Started(tmp_path, f"cluster.deadline={deadline:g}") as run:
        assert sorted(run.roles) == ["shard 0", "shard 1", "worker 0", "worker 1"]
        os.kill(run.roles[name], signal.SIGKILL)
        answer = run.answer()
        answer.assert_refused(f"{name} was killed by SIGKILL", f"process {run.roles[name]}", code=1)
        assert run.left() == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_stop_saves_the_state_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with Started(tmp_path) as run:
        run.popen.send_signal(number)
        answer = run.answer()
        assert answer.code == 0, answer.err
        assert "stopped after step" in answer.out
        assert f"satrap train --output {tmp_path}/run --resume" in answer.out
        assert run.left() == []
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["stopped"] == "stopped"
    assert load(tmp_path / "run" / "recipe.yaml").sections.cluster.workers == 2
    [step] = Series(str(tmp_path / "run" / "checkpoints")).steps()
    steps = f"training.steps={step + 5}"
    again = process(
        "train", tmp_path / "run/recipe.yaml", "--output", tmp_path / "run", "--resume", "--set", steps
    )
    assert again.code == 0, again.err
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["steps"] == step + 5
    assert 0.5 < json.loads(satrap("evaluate", tmp_path / "run", "--json").out)["auc"] < 1


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    with Started(tmp_path) as run:
        os.kill(run.roles["worker 1"], signal.SIGSTOP)  # it cannot stop in order
        run.popen.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert run.popen.poll() is None
        run.popen.send_signal(signal.SIGINT)
        run.answer().assert_refused("interrupted twice: all processes were killed", code=1)
        assert run.left() == []


def test_workers_that_do_not_stop_in_their_grace_are_killed(tmp_path: Path) -> None:
    with Started(tmp_path, "cluster.grace=2") as run:
        os.kill(run.roles["worker 1"], signal.SIGSTOP)
        run.popen.send_signal(signal.SIGTERM)
        said = "the workers had not stopped after 2 s and were killed", "raise cluster.grace"
        run.answer().assert_refused(*said, code=1)
        assert run.left() == []


def test_nothing_outlives_a_killed_launcher(tmp_path: Path) -> None:
    with Started(tmp_path) as run:
        run.popen.kill()
        run.popen.wait()
        assert run.left() == []


@pytest.mark.parametrize("name", ["worker 1", pytest.param("shard 0", marks=pytest.mark.slow)])
def test_a_stopped_role_ends_the_run_after_the_deadline(tmp_path: Path, name: str) -> None:
    with Started(tmp_path, "cluster.deadline=12") as run:
        os.kill(run.roles[name], signal.SIGSTOP)
        answer = run.answer()
        answer.assert_refused("stage: ", code=1)
        # Where workers meet, and where a sum does not come about.
        named = "shard 0 at " if name == "shard 0" else ("worker 1 has sent no heartbeat", "lost worker 1")
        assert any(part in answer.err for part in ([named] if isinstance(named, str) else named))
        assert run.left() == []


def test_a_killed_loader_is_started_again_and_named_when_it_dies_too_often(tmp_path: Path) -> None:
    with Started(tmp_path, loaders=2) as run:
        assert sorted(run.roles)[:2] == ["loader 0", "loader 1"]
        history = run.run / "metrics.jsonl"
        for _ in range(LOADER_RESTARTS):
            lines = history.read_text().count("\n")
            os.kill(run.roles["loader 1"], signal.SIGKILL)
            grown = eventually(lambda lines=lines: history.read_text().count("\n") > lines + 3)
            assert grown, run.said()
            found = children(run.popen.pid)
            [again] = set(found.values()) - set(run.roles.values())
            run.roles["loader 1"] = again
        os.kill(run.roles["loader 1"], signal.SIGKILL)
        answer = run.answer()
        answer.assert_refused("loader 1 was killed by SIGKILL", f"process {run.roles['loader 1']}", code=1)
        assert "restarting it (restart 3 of 3)" in answer.err
        assert run.left() == []


def test_a_killed_embedding_worker_is_named_and_ends_training(tmp_path: Path) -> None:
    with Started(tmp_path, middle=2) as run:
        assert sorted(run.roles)[:2] == ["embedding-worker 0", "embedding-worker 1"]
        pid = run.roles["embedding-worker 1"]
        os.kill(pid, signal.SIGKILL)
        answer = run.answer()
        answer.assert_refused("embedding worker 1 was killed by SIGKILL", f"process {pid}", code=1)
        assert run.left() == []


@pytest.mark.parametrize("durability", [pytest.param("snapshot", marks=pytest.mark.slow), "journal"])
def test_a_killed_embedding_worker_is_started_again_with_snapshots(tmp_path: Path, durability: str) -> None:
    settings = ("checkpoint.every_steps=20", f"checkpoint.durability={durability}")
    with Started(tmp_path, *settings, middle=2) as run:
        history, series = run.run / "metrics.jsonl", Series(str(run.run / "checkpoints"))
        assert eventually(lambda: series.latest() is not None)
        servers = {name: pid for name, pid in run.roles.items() if not name.startswith("worker")}
        os.kill(servers.pop("embedding-worker 1"), signal.SIGKILL)
        assert eventually(
            lambda: children(run.popen.pid).get("worker 1", 0) not in (0, run.roles["worker 1"])
        )
        newest = series.latest()
        assert newest is not None
        assert eventually(lambda: (series.latest() or 0) > newest)
        found = children(run.popen.pid)
        assert set(servers.values()) < set(found.values())
        run.roles |= {f"new {name}": pid for name, pid in found.items()}
        assert run.popen.poll() is None
        steps = [line["step"] for line in map(json.loads, history.read_text().splitlines())]
        assert sorted(steps) == steps


@pytest.mark.parametrize(
    ("role", "asked"),
    [pytest.param("loader 1", {"loaders": 2}, marks=pytest.mark.slow), ("embedding-worker 0", {"middle": 1})],
)
def test_a_stopped_server_of_workers_is_named_after_the_deadline(
    tmp_path: Path, role: str, asked: dict[str, int]
) -> None:
    with Started(tmp_path, "cluster.deadline=12", **asked) as run:
        os.kill(run.roles[role], signal.SIGSTOP)
        named = role.replace("-", " ")
        run.answer().assert_refused(f"{named} at ", "has not responded for 12 s", "stage: ", code=1)
        assert run.left() == []


@pytest.mark.parametrize(
    ("roles", "asked"),
    [
        (["shard 0", "worker 1"], {}),
        pytest.param(["loader 0"], {"loaders": 1}, marks=pytest.mark.slow),
        pytest.param(["embedding-worker 0"], {"middle": 1}, marks=pytest.mark.slow),
    ],
)
def test_a_role_that_stops_for_a_while_is_waited_for(
    tmp_path: Path, roles: list[str], asked: dict[str, int]
) -> None:
    with Started(tmp_path, "cluster.deadline=60", **asked) as run:
        for name in roles:
            os.kill(run.roles[name], signal.SIGSTOP)
            time.sleep(10)
            os.kill(run.roles[name], signal.SIGCONT)
        history = run.run / "metrics.jsonl"
        lines = history.read_text().count("\n")
        assert eventually(lambda: history.read_text().count("\n") > lines)
        assert run.popen.poll() is None


def test_a_killed_worker_is_started_again_behind_its_embedding_worker(tmp_path: Path) -> None:
    with Started(tmp_path, "checkpoint.every_steps=20", middle=1) as run:
        history = run.run / "metrics.jsonl"
        os.kill(run.roles["worker 1"], signal.SIGKILL)
        assert eventually(lambda: set(children(run.popen.pid).values()) - set(run.roles.values()))

        def lines() -> int:  # a death before the first snapshot begins the history anew
            return history.read_text().count("\n") if history.exists() else 0

        run.roles |= {f"new {name}": pid for name, pid in children(run.popen.pid).items()}
        before = lines()
        assert eventually(lambda: lines() > before + 2)
        assert run.popen.poll() is None
