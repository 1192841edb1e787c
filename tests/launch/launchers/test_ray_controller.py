"""A run that goes on without the program that began it: its controller, by itself and as an actor of Ray."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from satrap import launch
from satrap.config import load
from satrap.config.keys.cluster import ClusterKeys
from satrap.errors import ConfigError, ExchangeError
from satrap.launch.launchers import ray_controller
from satrap.launch.launchers.ray_controller import Controller
from tests.cli.command import SATRAP, process
from tests.cluster.runs import alive, eventually
from tests.launch.launchers.ray_nodes import Nodes
from tests.launch.runs import RECIPE, make_recipe
from tests.support.snapshots import saved


def begin(program: str, folder: Path, *, restarts: int = 3, patience: float = 5.0) -> Controller:
    return Controller(["-u", "-c", program], str(folder), str(folder), restarts=restarts, patience=patience)


def ended(controller: Controller) -> tuple[list[str], int]:
    """All that a command said, and how it ended."""
    born, lines, code = 0, list[str](), None
    while code is None:
        born, first, more, code = controller.said(born, len(lines), 30.0)
        assert first == len(lines)
        lines += more
    return lines, code


def test_lines_and_exit_code_of_the_command_are_told(tmp_path: Path) -> None:
    lines, code = ended(begin("import os; print(os.getcwd()); os.write(2, b'error\\n'); exit(3)", tmp_path))
    assert (lines, code) == ([str(tmp_path), "error"], 3)


KILLED = """
import os, pathlib, signal
count = pathlib.Path("count")
count.write_text(count.read_text() + "x" if count.exists() else "x")
print("time", len(count.read_text()))
if len(count.read_text()) < 3:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("restarts", "code", "times"), [(3, 0, 3), (1, -signal.SIGKILL, 2)])
def test_a_killed_command_is_started_again_a_few_times(
    tmp_path: Path, restarts: int, code: int, times: int
) -> None:
    lines, found = ended(begin(KILLED, tmp_path, restarts=restarts))
    assert found == code
    assert [line for line in lines if line.startswith("time")] == [f"time {i + 1}" for i in range(times)]
    assert "satrap train was killed by SIGKILL; restarting" in lines


WAITS = """
import signal, sys, time
def stop(*_):
    print("saved"); sys.exit(1)
signal.signal(signal.SIGINT, stop)
print("begun")
while True: time.sleep(0.05)
"""


def test_a_stopped_command_is_asked_to_save_and_not_started_again(tmp_path: Path) -> None:
    controller = begin(WAITS, tmp_path)
    assert controller.said(0, 0, 30.0)[2] == ["begun"]
    controller.stop()
    assert ended(controller) == (["begun", "saved"], 1)
    controller.stop()  # of no effect


def test_a_command_waits_until_that_of_an_earlier_controller_has_ended(tmp_path: Path) -> None:
    first = begin(WAITS, tmp_path)
    assert first.said(0, 0, 30.0)[2] == ["begun"]
    assert ended(begin("print(1)", tmp_path, patience=0.3)) == (
        [f"error: {line}" if not i else line for i, line in enumerate(REFUSED)],
        1,
    )
    second = begin("print('mine')", tmp_path, patience=30.0)
    assert second.said(0, 0, 0.3)[2] == []
    first.stop()
    assert ended(second) == (["mine"], 0)


REFUSED = [
    "the previous process has not ended after 0.3 s\n  why it matters: [Errno 98] Address already in use"
]


def test_what_is_said_is_bounded_and_those_who_know_another_controller_hear_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_controller, "KEPT_LINES", 10)
    controller = begin("print(*range(25), sep='\\n')", tmp_path)
    while controller.said(0, 0, 30.0)[3] is None:
        pass
    born, first, lines, code = controller.said(0, 7, 0.0)
    assert (first, lines, code) == (15, [str(i) for i in range(15, 25)], 0)
    assert controller.said(born, 22, 0.0)[1:3] == (22, ["22", "23", "24"])


def on(nodes: Nodes, *settings: str) -> list[str]:
    """Settings of a run on a cluster, as options."""
    there = ["cluster.launcher=ray", f"cluster.address={nodes.cluster.address}", "cluster.deadline=120"]
    there += ["cluster.exchange=servers", "cluster.shards=1", "cluster.workers=1", "cluster.wait=60"]
    return [word for one in (*there, *settings) for word in ("--set", one)]


def following(recipe: Path, run: Path, *options: str) -> subprocess.Popen[str]:
    command = [SATRAP, "train", recipe, "--output", run, "--attach", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def command_of(run: Path) -> tuple[int, int]:
    """Process ids of the program that trains a run, and of its controller."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().decode(errors="replace").split("\0")
        if "--stop-at-eof" in words and str(run) in words:
            stat = (path.parent / "stat").read_text()
            return int(path.parent.name), int(stat.rpartition(")")[2].split()[1])
    return 0, 0


@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("killed", ["the program that trains", "the controller"])
def test_a_detached_run_survives_deaths_and_has_the_rows_of_one_process(
    nodes: Nodes, tmp_path: Path, killed: str
) -> None:
    path, run = make_recipe(tmp_path, RECIPE.replace("hybrid, staleness: 2", "sync")), tmp_path / "run"
    same = ["training.epochs=150", "training.patience=null", "training.mode=sync"]
    wire = ["cluster.wire.forward=float32", "cluster.wire.backward=float32", "checkpoint.every_steps=20"]
    begun = process("train", path, "--output", run, "--detach", *on(nodes, *same, *wire), folder=tmp_path)
    assert begun.code == 0, begun.err
    assert "--attach" in begun.out
    again = process("train", path, "--output", run, "--detach", *on(nodes, *same, *wire), folder=tmp_path)
    again.assert_refused("already has a controller")
    follower = following(path, run, *on(nodes, *same, *wire))
    assert follower.stdout is not None
    assert follower.stdout.readline()  # it has found the controller
    assert eventually(lambda: any((run / "checkpoints").glob("*/manifest.json")), 120)
    program, controller = command_of(run)
    assert program
    os.kill(program if killed == "the program that trains" else controller, signal.SIGKILL)
    out, err = follower.communicate(timeout=300)
    assert follower.returncode == 0, (out, err)
    said = "restarting" if killed == "the program that trains" else "a new controller continues the run"
    assert said in out
    assert "resuming after step" in out
    assert out.rstrip().splitlines()[-1].startswith("next: satrap report")
    launch.train(load(path, same), str(tmp_path / "here"))
    assert saved(run) == saved(tmp_path / "here")
    process("train", "--output", run, "--attach").assert_refused("has no controller")
    assert nodes.free() == 8


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_stopped_run_is_saved_and_can_be_detached_again(nodes: Nodes, tmp_path: Path) -> None:
    path, run = make_recipe(tmp_path), tmp_path / "run"
    words = ["train", path, "--output", run]
    endless, short = (
        on(nodes, "training.patience=null", f"training.epochs={count}") for count in (100_000, 5)
    )
    begun = process(*words, "--detach", *endless)
    assert begun.code == 0, begun.err
    assert eventually((run / "metrics.jsonl").exists, 120)
    program, _ = command_of(run)
    stopped = process("train", "--output", run, "--stop")
    assert stopped.code == 1
    assert "its state is saved" in stopped.out
    assert not alive(program)
    begun = process(*words, "--detach", *short)
    assert begun.code == 0, begun.err
    attached = process(*words, "--attach", *short)
    assert attached.code == 0, (attached.out, attached.err)
    assert "resuming after step" in attached.out


class AwayError(Exception):
    """In place of Ray's errors."""


class Actor:
    """Answers as written down: what `said` returns, or an error instead."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers, self.asked, self.stops = answers, list[Any](), 0
        self.said = SimpleNamespace(remote=self._said)
        self.stop = SimpleNamespace(remote=self._stop)

    def _said(self, *given: Any) -> Any:
        self.asked.append(given)
        return self.answers.pop(0) if self.answers else AwayError("gone")

    def _stop(self) -> None:
        self.stops += 1


class RayHere:
    """The part of Ray that `attach` calls, with one actor and a clock of which each pause takes 20 s."""

    exceptions = SimpleNamespace(RayError=AwayError)

    def __init__(self, actor: Actor | None) -> None:
        self.actor, self.now, self.pauses, self.joined = actor, 0.0, 0, list[str]()
        self.killed: object = None

    def is_initialized(self) -> bool:
        return bool(self.joined)

    def get_actor(self, name: str, *, namespace: str) -> Actor:
        if self.actor is None:
            raise ValueError(name)
        assert (name, namespace) == ("/a/run", "satrap")
        return self.actor

    def get(self, answer: Any, *, timeout: float) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, actor: object) -> None:
        self.killed = actor

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        self.now += 20.0
        self.pauses += 1


ON_RAY = ClusterKeys(exchange="servers", launcher="ray", address="h:1")


def attached(monkeypatch: pytest.MonkeyPatch, ray: RayHere, *, stop: bool = False) -> tuple[list[str], int]:
    """What a follower shows, and the exit code."""
    monkeypatch.setattr(ray_controller, "ray_module", lambda: ray)
    monkeypatch.setattr(ray_controller, "join", ray.joined.append)
    monkeypatch.setattr(ray_controller, "time", ray)
    shown: list[str] = []
    code = ray_controller.attach(ON_RAY, Path("/a/run"), shown.append, stop=stop)
    assert ray.joined == ["h:1"]
    return shown, code


def test_a_follower_shows_each_line_once_whatever_happens_to_the_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Any] = [
        TimeoutError(),
        (1, 0, ["a"], None),
        AwayError("busy"),
        (1, 3, ["d"], None),  # b and c are not kept any more
        (2, 0, ["a", "b"], None),
        (2, 2, [], 3),
    ]
    ray = RayHere(Actor(answers))
    shown, code = attached(monkeypatch, ray)
    assert ray.actor is not None
    again = "a new controller continues the run"
    assert shown == ["a", "(2 earlier lines were dropped)", "d", again, "a", "b"]
    assert ray.actor.asked == [(0, 0, 2.0), (0, 0, 2.0), (1, 1, 2.0), (1, 1, 2.0), (1, 4, 2.0), (2, 2, 2.0)]
    assert (code, ray.actor.stops, ray.pauses, ray.killed) == (3, 0, 2, ray.actor)


def test_a_run_is_asked_once_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = RayHere(Actor([(1, 0, ["saved"], None), (1, 1, [], 1)]))
    assert attached(monkeypatch, ray, stop=True) == (["saved"], 1)
    assert ray.actor is not None
    assert ray.actor.stops == 1


def test_a_controller_that_is_away_for_more_than_a_minute_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted from its last answer, here after 40 s: it is asked until 120 s."""
    ray = RayHere(Actor([AwayError("1"), AwayError("2"), (1, 0, [], None)]))
    with pytest.raises(ExchangeError) as caught:
        attached(monkeypatch, ray)
    assert (caught.value.what, caught.value.why) == ("the controller of the run does not answer", "gone")
    assert caught.value.fix == "when its node is back: satrap train --output /a/run --attach"
    assert (ray.now, ray.pauses, ray.killed) == (120.0, 6, None)


@pytest.mark.parametrize("keys", [ClusterKeys(), ClusterKeys(exchange="servers", launcher="ray")])
def test_nobody_follows_a_run_without_a_cluster(keys: ClusterKeys) -> None:
    with pytest.raises(ConfigError, match="a run can only be detached on a Ray cluster"):
        ray_controller.attach(keys, Path("run"), print)


def test_nobody_follows_a_run_without_a_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="the run in /a/run has no controller"):
        attached(monkeypatch, RayHere(None))
