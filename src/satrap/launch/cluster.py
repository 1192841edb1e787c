"""A run in several processes of this machine: shards hold the rows, workers train."""

from __future__ import annotations

import itertools
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch.distributed as dist

from satrap.checkpoint import Series
from satrap.config import Recipe
from satrap.errors import ExchangeError, SatrapError
from satrap.launch.endpoints import metrics_address
from satrap.launch.folder import RunFolder
from satrap.launch.messages import error_of, parse, result_of, tell
from satrap.launch.outcome import InterruptedRunError, Outcome
from satrap.launch.roles import Role
from satrap.launch.trial import try_out
from satrap.launch.worker import INTERRUPTED, PEER_LOST, Assignment
from satrap.schema import Schema
from satrap.train import Checkpointing, Observer

READY_SECONDS = 120.0
"""For a shard to start: a busy machine may need long to import its packages."""

STOP_SECONDS = 60.0
"""For the workers to save after Ctrl-C."""

_TICK = 0.1
_SETTLE = 0.5
"""After the first death: others follow within it, and say whose fault it was."""

Notice = Callable[[str], None]


class LostWorkersError(ExchangeError):
    """Workers have died, and nothing else; the shards are there."""


def run(
    recipe: Recipe,
    schema: Schema,
    folder: RunFolder,
    plan: Checkpointing,
    resume: bool = False,
    *,
    observers: Sequence[Observer] = (),
    notice: Notice,
) -> Outcome:
    """Train a recipe with the shards and workers it names, as processes of this machine.

    When a worker dies in a run that takes snapshots, all workers start again from the newest one, up to
    `cluster.restarts` times; the shards stay, and load its rows.

    Args:
        recipe: what to do.
        schema: labels and features, measured.
        folder: of the run.
        plan: where snapshots go.
        resume: go on from the newest one.
        observers: told about evaluations, and steps a few times a second.
        notice: called with each line of the roles' logs, with the role's name in front.

    Raises:
        ConfigError, DataError: the user's input.
        TrainingError: the run had to stop.
        ExchangeError: a shard or worker was lost; all others have been ended.
        InterruptedRunError: Ctrl-C, and the workers could not save in time; a second one kills at once.
        KeyboardInterrupt: before it.
    """
    try_out(recipe, schema)
    with Launcher(notice) as launcher:
        keys = recipe.sections.cluster
        shards = launcher.start_shards([metrics_address(keys, i) for i in range(keys.shards)])
        restarts = keys.restarts if plan.every_steps is not None else 0
        for generation in itertools.count():
            assignment = Assignment(
                str(folder.path.absolute()),
                schema.to_dict(),
                0,
                keys.workers,
                "",
                shards,
                generation=generation,
                resume=resume,
            )
            launcher.start_workers(assignment)
            try:
                return launcher.follow(folder, observers)
            except LostWorkersError as error:
                if generation == restarts:
                    raise
                step = Series(plan.url).latest()
                launcher.regroup(error, step, f"restart {generation + 1} of {restarts}")
                resume = step is not None
                if not resume:
                    folder.history_file.unlink(missing_ok=True)
        raise AssertionError("unreachable")


class Launcher:
    """Starts, watches and stops the roles of one run; leave the context, and none is left.

    Args:
        notice: called with each line of the roles' logs.
    """

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self.shards: list[Role] = []
        self.workers: list[Role] = []
        self._heard: queue.SimpleQueue[tuple[Role, str, str]] = queue.SimpleQueue()
        self._errors: dict[Role, SatrapError] = {}
        self._interrupts, self._stop_until = 0, 0.0
        self._handlers: dict[signal.Signals, Any] = {}
        self._store: Any = None
        self._step = 0

    def __enter__(self) -> Launcher:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, error: object, *_: object) -> None:
        for role in self.workers + (self.shards if error else []):
            role.send(signal.SIGKILL)
        for role in self.shards:
            role.release()
        for role in self.workers + self.shards:
            role.end(STOP_SECONDS)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _interrupt(self, _: int, __: FrameType | None) -> None:
        self._interrupts += 1

    def _hear(self, role: Role, kind: str, line: str) -> None:
        self._heard.put((role, kind, line))

    def start_shards(self, metrics: Sequence[str | None]) -> tuple[str, ...]:
        """Start shard servers on free ports; return their addresses once they are ready.

        Args:
            metrics: HOST:PORT of each one's metrics; None without.

        Raises:
            ExchangeError: one does not become ready.
            KeyboardInterrupt: Ctrl-C.
        """
        command = [sys.executable, "-m", "satrap.cli", "shard", "--listen", "127.0.0.1:0", "--stop-at-eof"]
        commands = [[*command, *(["--metrics", place] if place else [])] for place in metrics]
        self.shards = [Role(f"shard {i}", command, self._hear) for i, command in enumerate(commands)]
        ready: dict[Role, str] = {}
        limit = time.monotonic() + READY_SECONDS
        while len(ready) < len(self.shards):
            for role, line in self._lines():
                self._notice(f"[{role.name}] {line}")
                if " ready on " in line:
                    ready[role] = line.split(" ready on ")[1].split()[0]
            if self._interrupts:
                raise KeyboardInterrupt
            self._check()
            if time.monotonic() > limit:
                late = next(role for role in self.shards if role not in ready)
                raise ExchangeError(f"{late.name} was not ready after {READY_SECONDS:g} s", where=late.traces)
        return tuple(ready[role] for role in self.shards)

    def start_workers(self, assignment: Assignment) -> None:
        """Start the workers of a run.

        Args:
            assignment: of each; rank and meeting point are filled in.
        """
        store = self._meeting_point() if assignment.world > 1 else ""
        command = [sys.executable, "-m", "satrap.launch"]
        for rank in range(assignment.world):
            line = replace(assignment, rank=rank, store=store).to_json()
            self.workers.append(Role(f"worker {rank}", command, self._hear, line))

    def regroup(self, error: LostWorkersError, step: int | None, count: str) -> None:
        """End what is left of the workers, and say what is done again.

        Args:
            error: what happened.
            step: of the newest snapshot, None without.
            count: which restart it is, in words.
        """
        for role in self.workers:
            role.send(signal.SIGKILL)
        for role in self.workers:
            role.end(STOP_SECONDS)
            self._errors.pop(role, None)
        self._pass_on(None)
        self.workers = []
        lost = max(self._step - (step or 0), 0)
        origin = (
            "the beginning: there is no snapshot yet" if step is None else f"the snapshot of step {step:,}"
        )
        self._notice(
            f"{error.what} ({error.where.partition(';')[0]}): all workers start again from {origin}; about "
            f"{lost:,} steps are done again ({count})"
        )

    def _meeting_point(self) -> str:
        """Open the store where workers find each other, on loopback only."""
        listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        port = listening.getsockname()[1]
        c10d: Any = dist
        self._store = c10d.TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        return f"127.0.0.1:{port}"

    def follow(self, folder: RunFolder, observers: Sequence[Observer]) -> Outcome:
        """Pass on what the workers tell until they have ended.

        Raises:
            SatrapError: a role was lost or failed; Ctrl-C after the first step.
            KeyboardInterrupt: Ctrl-C before it.
        """
        outcome: Outcome | None = None
        while any(role.code is None for role in self.workers):
            outcome = self._pass_on(folder, observers) or outcome
            self._mind_interrupts()
            self._check()
        for role in self.workers:
            role.end(1.0)
        outcome = self._pass_on(folder, observers) or outcome
        self._check()
        if outcome is None:
            raise self._errors.get(self.workers[0], KeyboardInterrupt())
        return outcome

    def _pass_on(self, folder: RunFolder | None, observers: Sequence[Observer] = ()) -> Outcome | None:
        outcome = None
        for role, line in self._lines():
            message = parse(line)
            if message is None:
                continue
            match message["kind"]:
                case "step":
                    self._step = message["progress"]["step"]
                case "outcome" if folder is not None:
                    outcome = Outcome(folder, result_of(message["result"]), message["test"])
                case "error":
                    self._errors[role] = error_of(message["error"])
                case "notice":
                    self._notice(message["text"])
            for observer in observers:
                tell(observer, message)
        return outcome

    def _lines(self) -> Iterator[tuple[Role, str]]:
        """Yield what roles have written on standard output, after a short wait; pass their logs on."""
        wait = _TICK
        while True:
            try:
                role, kind, line = self._heard.get(timeout=wait)
            except queue.Empty:
                return
            wait = 0.0
            if kind == "log":
                self._notice(f"[{role.name}] {line}")
            else:
                yield role, line

    def _mind_interrupts(self) -> None:
        if self._interrupts > 1:
            raise InterruptedRunError(
                "interrupted twice: all processes were killed, and the state was not saved"
            )
        if self._interrupts and not self._stop_until:
            self._stop_until = time.monotonic() + STOP_SECONDS
            self._notice("saving after this step; Ctrl-C again to kill")
            for role in self.workers:
                role.send(signal.SIGINT)
        if self._stop_until and time.monotonic() > self._stop_until:
            raise InterruptedRunError(
                f"interrupted; the workers had not stopped after {STOP_SECONDS:g} s and were killed",
                why="the state since the newest snapshot was not saved",
            )

    def _lost(self) -> list[Role]:
        """Return the roles that have ended as they should not; the likeliest cause first."""
        shards = [role for role in self.shards if role.code is not None]
        workers = [
            role
            for role in self.workers
            if role.code not in (None, 0, INTERRUPTED)
            and not isinstance(self._errors.get(role), InterruptedRunError)
        ]
        return shards + sorted(workers, key=lambda role: role.code == PEER_LOST)

    def _check(self) -> None:
        """Raise the error of a role that was lost, if one was."""
        if not self._lost():
            return
        until = time.monotonic() + _SETTLE
        while time.monotonic() < until:
            for role, line in self._lines():
                message = parse(line)
                if message and message["kind"] == "error":
                    self._errors[role] = error_of(message["error"])
        lost = self._lost()
        if not lost:
            return
        role = lost[0]
        shard = role in self.shards
        told = self._errors.get(role)
        if not self._stop_until and not shard and all(map(self._may_return, lost)):
            kind: type[ExchangeError] = LostWorkersError
        else:
            kind = ExchangeError
        if told is not None and (kind is ExchangeError or not isinstance(told, ExchangeError)):
            raise told
        if told is not None:
            raise kind(told.what, where=told.where, why=told.why, fix=told.fix)
        raise kind(
            f"{role.name} {role.ending}",
            where=role.traces,
            why="the rows it held are lost, and the run with them"
            if shard
            else "the others cannot go on alone",
            fix="look for its lines above; if the system killed it, it may have run out of memory",
        )

    def _may_return(self, role: Role) -> bool:
        """Whether a worker ended by something that need not happen again."""
        killed = role.code is not None and role.code < 0
        return killed or (role.code == PEER_LOST and isinstance(self._errors.get(role), ExchangeError))
