"""The actor of one role: starts the role's process on its node and forwards its reports."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import satrap
from satrap.errors import ConfigError, ExchangeError, SatrapError
from satrap.launch.launchers.launcher import Ended, Launched, Role, Stop
from satrap.launch.launchers.local_launcher import LocalLauncher
from satrap.launch.launchers.ray_gauges import Gauges
from satrap.runtime.events import Event, Failed, MetricsServed, decode, encode

FENCE_SECONDS = 20.0
"""Seconds for an earlier process of the same role to end; servers take up to ten."""

_LOOK_SECONDS = 0.5
"""Seconds between two checks of the role's process. Its events are forwarded at once."""

_TICK = 0.1
_SCORE = Path("/proc/self/oom_score_adj")


@dataclass(frozen=True)
class OutputLine(Event):
    """A line of a role's standard output: an event or any text."""

    line: str


@dataclass(frozen=True)
class Warned(Event):
    """A warning about the configuration of the nodes, with the same text from all nodes."""

    text: str


@dataclass(frozen=True)
class Terms:
    """Settings that a launcher sends to all its agents.

    Attributes:
        run: identity of the run.
        version: version of satrap at the launcher.
        folder: working folder of roles; must exist on every node.
        needs: files and folders that must exist on every node.
        host: address on which servers listen; "": the node's address.
        priority: niceness and OOM score of the launcher.
        label: name of the run in Ray's metrics.
    """

    run: str
    version: str
    folder: str
    needs: tuple[str, ...]
    host: str
    priority: tuple[int, int]
    label: str


def priority() -> tuple[int, int]:
    """Return niceness and OOM score adjustment of this process, which child processes inherit."""
    return os.nice(0), int(_SCORE.read_text()) if _SCORE.exists() else 0


def yielding(there: tuple[int, int], here: tuple[int, int]) -> str:
    """Return a warning if processes on a node have a lower priority than the launcher, else ""."""
    if there[0] <= here[0] and there[1] <= here[1]:
        return ""
    return (
        f"warning: Ray runs processes with niceness {there[0]} and OOM score {there[1]:+}: these processes "
        "run at low priority and are killed first; set RAY_worker_niceness=0 and "
        "RAY_worker_oom_score_adjustment=0 at ray start"
    )


class Agent:
    """Runs one role on this node, see `satrap.launch.launchers.ray_launcher.RayLauncher`; a plain class.

    When the agent's process dies, the role's standard input closes, and the role ends by itself. Until then
    the role holds an abstract socket name, and the next agent waits for this name. So a role never runs twice
    on a node.

    Args:
        role: a `Role`, as JSON.
        terms: a `Terms`, as JSON.
        address: returns this node's address.
        gauge: `ray.util.metrics.Gauge`, for the metrics of a role that serves metrics.
    """

    def __init__(self, role: str, terms: str, address: Callable[[], str], gauge: Callable[..., Any]) -> None:
        values = json.loads(terms)
        self._terms = Terms(
            **{**values, "needs": tuple(values["needs"]), "priority": tuple(values["priority"])}
        )
        self._role = Role(**json.loads(role))
        self._said: list[str] = []
        self._count = 0  # of events already received by the launcher and dropped
        self._lock = threading.Lock()
        self._local: LocalLauncher | None = None
        self._node = address()
        kind, _, number = self._role.name.rpartition(" ")
        labels = {"run": self._terms.label, "role": kind.replace(" ", "-"), "number": number}
        self._gauges = Gauges(gauge, labels)
        # Ray blocks SIGINT in its workers, and the mask is inherited; SIGINT requests workers to save.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        try:
            self._begin()
        except SatrapError as error:
            self._said += map(encode, (Launched(f"node {self._node}"), Failed(error), Ended(1)))

    def _begin(self) -> None:
        self._check()
        os.chdir(self._terms.folder)
        host, role = self._terms.host or self._node, self._role
        if role.listen and role.listen.rpartition(":")[0] != host:
            role = replace(role, listen="")  # it ran on another node before
        with alone(f"\0satrap {self._terms.run} {role.name}") as name:
            self._local = LocalLauncher(host=host, read=OutputLine, inherit=[name.fileno()])
            self._local.start(role)
        if warning := yielding(priority(), self._terms.priority):
            self._said.append(encode(Warned(warning)))

    def _check(self) -> None:
        if satrap.__version__ != self._terms.version:
            raise ConfigError(
                f"satrap {satrap.__version__} is installed on the node, but {self._terms.version} started "
                "the run",
                where=f"node {self._node}",
                fix="install the same version on all nodes",
            )
        for path in (self._terms.folder, *self._terms.needs):
            if not Path(path).exists():
                raise ConfigError(
                    f"the node does not have {path}",
                    where=f"node {self._node}",
                    why="every process of the run reads it",
                    fix="put it on storage that all nodes mount at the same path",
                )

    def events(self, have: int, seconds: float) -> list[str]:
        """Return the events after the first `have`, as JSON; wait at most `seconds` for an event.

        The launcher may request events again if an answer was lost.
        """
        limit = time.monotonic() + seconds
        with self._lock:
            del self._said[: max(have - self._count, 0)]
            self._count = max(self._count, have)
            while True:
                self._hear(0.0 if self._said else _LOOK_SECONDS)
                if self._said or time.monotonic() > limit:
                    return list(self._said)

    def _hear(self, seconds: float) -> None:
        for _, event in self._local.events(seconds) if self._local else ():
            if isinstance(event, Launched):
                event = Launched(f"{event.place} on node {self._node}")
            if isinstance(event, OutputLine) and isinstance(served := decode(event.line), MetricsServed):
                self._gauges.follow(served.address)
            self._said.append(encode(event))

    def stop(self, how: str) -> None:
        """Request the end of the role, or kill it; `how` is the name of a `Stop`."""
        if self._local:
            self._local.stop(self._role.name, Stop[how])


def alone(name: str, seconds: float = FENCE_SECONDS) -> socket.socket:
    """Return a socket bound to an abstract name; wait until no other process holds the name."""
    limit = time.monotonic() + seconds
    while True:
        holder = socket.socket(socket.AF_UNIX)
        try:
            holder.bind(name)
            return holder
        except OSError as error:
            holder.close()
            if time.monotonic() > limit:
                raise ExchangeError(
                    f"the previous process has not ended after {seconds:g} s", why=str(error)
                ) from error
        time.sleep(_TICK)
