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
from tests.cli.command import process, satrap
from tests.cluster.runs import Started

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("name", ["shard 1", "worker 0", "worker 1"])
def test_a_killed_role_is_named_and_takes_all_others_with_it(tmp_path: Path, name: str) -> None:
    with Started(tmp_path) as run:
        assert sorted(run.roles) == ["shard 0", "shard 1", "worker 0", "worker 1"]
        start = time.monotonic()
        os.kill(run.roles[name], signal.SIGKILL)
        answer = run.answer(20)
        assert time.monotonic() - start < 20
        answer.assert_refused(f"{name} was killed by SIGKILL", f"process {run.roles[name]}", code=1)
        assert run.left() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_saves_the_state_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with Started(tmp_path) as run:
        run.popen.send_signal(number)
        answer = run.answer(30)
        assert answer.code == 0, answer
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
    assert again.code == 0, again
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["steps"] == step + 5
    assert 0.5 < json.loads(satrap("evaluate", tmp_path / "run", "--json").out)["auc"] < 1


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    with Started(tmp_path) as run:
        os.kill(run.roles["worker 1"], signal.SIGSTOP)  # it cannot stop in order
        run.popen.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert run.popen.poll() is None
        run.popen.send_signal(signal.SIGINT)
        run.answer(10).assert_refused("interrupted twice: all processes were killed", code=1)
        assert run.left() == []


def test_nothing_outlives_a_killed_launcher(tmp_path: Path) -> None:
    with Started(tmp_path) as run:
        run.popen.kill()
        run.popen.wait()
        assert run.left() == []


@pytest.mark.parametrize("name", ["worker 1", "shard 0"])
def test_a_stopped_role_ends_the_run_after_the_deadline(tmp_path: Path, name: str) -> None:
    with Started(tmp_path, "cluster.deadline=4") as run:
        os.kill(run.roles[name], signal.SIGSTOP)
        answer = run.answer(25)
        answer.assert_refused("stage: ", code=1)
        # Where workers meet, the stopped one is named; in a sum, gloo only tells that one is missing.
        named = "shard 0 at " if name == "shard 0" else ("worker 1 has shown no sign", "lost another worker")
        assert any(part in answer.err for part in ([named] if isinstance(named, str) else named))
        assert run.left() == []


def test_a_role_that_stops_for_a_while_is_waited_for(tmp_path: Path) -> None:
    with Started(tmp_path, "cluster.deadline=20") as run:
        for name in ("shard 0", "worker 1"):
            os.kill(run.roles[name], signal.SIGSTOP)
            time.sleep(5)
            os.kill(run.roles[name], signal.SIGCONT)
        history = run.run / "metrics.jsonl"
        lines = history.read_text().count("\n")
        time.sleep(5)
        assert run.popen.poll() is None
        assert history.read_text().count("\n") > lines
