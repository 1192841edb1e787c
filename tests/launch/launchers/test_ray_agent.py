"""An agent is a plain class: what it does is shown without Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar

import pytest

import satrap
from satrap.errors import ConfigError
from satrap.launch.launchers.launcher import Ended, Launched, Logged, Role
from satrap.launch.launchers.ray_agent import Agent, OutputLine, Terms, Warned, priority, yielding
from satrap.runtime.events import Event, Failed, Notice, Ready, decode
from tests.cluster.runs import alive, eventually
from tests.support.roles import MEASURED, SERVER

# Sets its own handler: what a shell starts in the background ignores SIGINT, and so do its children.
SLEEPER = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
print(1, flush=True)
time.sleep(300)
"""


class Shown:
    """A gauge; of all of them, the values by name and labels."""

    values: ClassVar[dict[tuple[str, str], float]] = {}

    def __init__(self, name: str, about: str, tags: tuple[str, ...]) -> None:
        assert about
        self._name, self._tags = name, tags

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert set(tags) == set(self._tags)
        Shown.values[self._name, ",".join(tags.values())] = value


TERMS = Terms("run", satrap.__version__, "/", (), "127.0.0.1", priority(), "label")


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Go back afterwards: an agent changes the folder of its process, which is an actor's otherwise."""
    monkeypatch.chdir(Path.cwd())


def agent(role: Role, terms: Terms, address: str = "10.0.0.7") -> Agent:
    terms = replace(
        terms, run=f"run of {os.getpid()} at {time.monotonic()}" if terms.run == "run" else terms.run
    )
    return Agent(json.dumps(asdict(role)), json.dumps(asdict(terms)), lambda: address, Shown)


def hear(agent: Agent, until: Callable[[list[Event]], bool], have: int = 0) -> list[Event]:
    """Return events until a condition is true, asked for as a launcher does."""
    heard: list[Event] = []
    limit = time.monotonic() + 60
    while not until(heard) and time.monotonic() < limit:
        for line in agent.events(have + len(heard), 0.5):
            event = decode(line)
            assert event is not None
            heard.append(event)
    assert until(heard), heard
    return heard


def ended(heard: list[Event]) -> bool:
    return bool(heard) and isinstance(heard[-1], Ended)


def test_a_role_reports_through_its_agent_until_its_end() -> None:
    one = agent(Role("shard 0", ["-c", SERVER], listen=""), TERMS)
    heard = hear(one, lambda heard: len(heard) >= 3)
    assert isinstance(heard[0], Launched)
    assert heard[0].place.endswith(" on node 10.0.0.7")
    lines = [event.line for event in heard if isinstance(event, OutputLine)]
    assert lines[0] == "no event"
    assert decode(lines[1]) == Ready("--listen 127.0.0.1:0")
    one.stop("SAVE")
    saves = hear(one, bool, len(heard))[0]
    assert isinstance(saves, OutputLine)
    assert decode(saves.line) == Notice("saves")
    one.stop("RELEASE")
    assert hear(one, ended, len(heard) + 1)[-1] == Ended(0)


def test_events_are_kept_until_the_launcher_has_them() -> None:
    one = agent(Role("shard 0", ["-c", "print(1); print(2)"]), TERMS)
    heard: list[Event | None] = []
    while not any(isinstance(event, Ended) for event in heard):  # nothing is acknowledged yet
        heard = [decode(line) for line in one.events(0, 1.0)]
    assert [decode(line) for line in one.events(1, 0)] == heard[1:]
    assert [decode(line) for line in one.events(1, 0)] == heard[1:]
    assert one.events(len(heard), 0) == []


@pytest.mark.cluster
def test_a_server_that_comes_back_elsewhere_listens_there() -> None:
    for listen, terms, expected in (
        ("10.0.0.7:5000", replace(TERMS, host=""), "10.0.0.7:5000"),
        ("10.0.0.6:5000", replace(TERMS, host=""), "10.0.0.7:0"),
        ("127.0.0.1:5000", TERMS, "127.0.0.1:5000"),
    ):
        one = agent(Role("shard 0", ["-c", "import sys; print(sys.argv[2])"], listen=listen), terms)
        assert OutputLine(expected) in hear(one, ended)


def test_a_node_without_the_files_or_the_version_says_so(tmp_path: Path) -> None:
    role = Role("worker 0", ["-c", "print(1)"])
    for terms, what in (
        (replace(TERMS, needs=(str(tmp_path / "run"),)), f"the node does not have {tmp_path / 'run'}"),
        (
            replace(TERMS, version="9.9"),
            f"satrap {satrap.__version__} is installed on the node, but 9.9 started the run",
        ),
    ):
        heard = hear(agent(role, terms), ended)
        assert isinstance(heard[0], Launched)
        assert isinstance(heard[1], Failed)
        assert isinstance(heard[1].error, ConfigError)
        assert heard[1].error.what == what
        assert heard[2:] == [Ended(1)]


LINGERING = """
import os, sys, time
print(os.getpid(), flush=True)
sys.stdin.read()
time.sleep(1.5)
"""

SHORT_LIVED = """
import sys, time
from satrap.launch.launchers.ray_agent import Agent
agent = Agent(sys.argv[1], sys.argv[2], lambda: "", None)
while len(said := agent.events(0, 1)) < 2:
    pass
print(said[1], flush=True)
time.sleep(300)
"""


@pytest.mark.cluster
def test_a_role_never_runs_twice_on_a_node() -> None:
    """Its agent was killed; the next one waits until the process that was left has ended."""
    terms = replace(TERMS, run=f"twice {os.getpid()}")
    arguments = [json.dumps(asdict(one)) for one in (Role("shard 0", ["-c", LINGERING]), terms)]
    first = subprocess.Popen(
        [sys.executable, "-c", SHORT_LIVED, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    said = decode(first.stdout.readline())
    assert isinstance(said, OutputLine)
    pid = int(said.line)
    first.kill()
    first.communicate()
    assert alive(pid)
    second = agent(Role("shard 0", ["-c", "print(1)"]), terms)
    assert not alive(pid)
    assert hear(second, ended)[-1] == Ended(0)


def test_a_signal_that_ray_blocks_reaches_the_role() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        one = agent(Role("worker 0", ["-c", SLEEPER]), TERMS)
        heard = hear(one, lambda heard: OutputLine("1") in heard)
        one.stop("SAVE")
        last = hear(one, ended, len(heard))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert last[-1] == Ended(-signal.SIGINT)
    assert any("KeyboardInterrupt" in event.line for event in last if isinstance(event, Logged))


@pytest.mark.cluster
def test_metrics_of_a_role_become_gauges() -> None:
    one = agent(Role("shard 2", ["-c", MEASURED]), TERMS)
    heard = hear(one, lambda heard: len(heard) >= 2)
    rows = ("satrap_shard_rows", "label,shard,2")
    assert eventually(lambda: rows in Shown.values, 30)
    assert Shown.values[rows] == 7
    assert Shown.values["satrap_shard_requests_total", "lookup,label,shard,2"] == 3
    assert Shown.values["satrap_process_resident_memory_bytes", "label,shard,2"] > 1e6
    assert all(name.startswith("satrap_") for name, _ in Shown.values)
    one.stop("RELEASE")
    assert hear(one, ended, len(heard))[-1] == Ended(0)


def test_nodes_that_put_processes_last_are_told() -> None:
    assert yielding((5, 0), (5, 0)) == ""
    assert "niceness 15 and OOM score +0" in yielding((15, 0), (5, 0))
    assert "niceness 0 and OOM score +1000" in yielding((0, 1000), (0, 0))
    other = agent(Role("worker 0", ["-c", ""]), replace(TERMS, priority=(priority()[0] - 1, 0)))
    assert any(isinstance(event, Warned) for event in hear(other, ended))
