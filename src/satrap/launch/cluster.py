"""A run in several processes of this machine: shards hold the rows, workers train."""

from __future__ import annotations

import itertools
import queue
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist

from satrap.checkpoint import Series
from satrap.config import Recipe
from satrap.errors import ExchangeError, SatrapError
from satrap.events import Event, Failed, Notice, Ready, Recovering
from satrap.launch.dry_run import dry_run
from satrap.launch.endpoints import metrics_address
from satrap.launch.events import Stepped, Trained, tell
from satrap.launch.folder import RunFolder
from satrap.launch.outcome import InterruptedRunError, Outcome
from satrap.launch.roles import Logged, Role
from satrap.launch.worker import INTERRUPTED, PEER_LOST, Assignment
from satrap.schema import Schema
from satrap.train import Checkpointing, Observer

READY_SECONDS = 120.0
"""For a shard to start: a busy machine may need long to import its packages."""

LOADER_RESTARTS = 3
"""How often loaders that have died are started again in a run; they hold nothing that could be lost."""

STOP_SECONDS = 60.0
"""For a role to end once it has nothing more to do, or was killed."""

_TICK = 0.1
_SETTLE = 0.5
"""After the first death: others follow within it, and say whose fault it was."""

Say = Callable[[str], None]


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
    notice: Say,
) -> Outcome:
    """Train a recipe with the shards and workers it names, as processes of this machine.

    With a journal, a shard that is killed starts again and becomes what it was; all others wait. Without one,
    or when a worker dies, all workers start again from the newest snapshot, if the run takes any; the shards
    that are there stay, and load its rows. All that happens up to `cluster.restarts` times together.

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
    dry_run(recipe, schema)
    keys = recipe.sections.cluster
    with Launcher(notice, grace=keys.grace) as launcher:
        shutil.rmtree(folder.journals, ignore_errors=True)  # of an attempt before: this one begins anew
        shards = launcher.start_shards(
            [metrics_address(keys, i) for i in range(keys.shards)],
            journals=folder.journals if recipe.sections.checkpoint.durability == "journal" else None,
            snapshots=plan.every_steps is not None,
            restarts=keys.restarts,
        )
        loaders = launcher.start_loaders(folder, recipe)
        middle = launcher.start_embedding_workers(recipe)
        where, plain = str(folder.path.absolute()), schema.to_dict()
        assignment = Assignment(
            where, plain, 0, keys.workers, "", shards, loaders, embedding_workers=middle, resume=resume
        )
        outcome = _follow(launcher, assignment, folder, plan, observers)
        if launcher.restarts:
            again = {"restarts": launcher.restarts, "repeated_steps": launcher.repeated}
            folder.write_metrics({**outcome.metrics, **again})
    shutil.rmtree(folder.journals, ignore_errors=True)
    return outcome


def _follow(
    launcher: Launcher,
    assignment: Assignment,
    folder: RunFolder,
    plan: Checkpointing,
    observers: Sequence[Observer],
) -> Outcome:
    """Start the workers, and start them again from the newest snapshot, until they have ended."""
    assignment = replace(assignment, run=secrets.token_hex(8))
    for generation in itertools.count():
        launcher.start_workers(replace(assignment, generation=generation))
        try:
            return launcher.follow(folder, observers)
        except LostWorkersError as error:
            step = Series(plan.url).latest()
            launcher.regroup(error, step)
            assignment = replace(assignment, resume=step is not None)
            if step is None:
                folder.history_file.unlink(missing_ok=True)
    raise AssertionError("unreachable")


class Launcher:
    """Starts, watches and stops the roles of one run; leave the context, and none is left.

    Args:
        notice: called with each line of the roles' logs.
        grace: seconds that workers have to save after Ctrl-C or SIGTERM.

    Attributes:
        shards, workers: the roles.
        addresses: HOST:PORT of each shard.
        restarts: roles, or all workers together, that were started again.
        repeated: steps that were done again because of it, about.
    """

    def __init__(self, notice: Say, *, grace: float = 60.0) -> None:
        self._notice, self._grace = notice, grace
        self.shards: list[Role] = []
        self.loaders: list[Role] = []
        self.embedding_workers: list[Role] = []
        self._start_loader: Callable[..., Role]  # given a number and where to listen
        self._loader_addresses: tuple[str, ...] = ()
        self._loader_restarts = 0
        self.workers: list[Role] = []
        self._heard: queue.SimpleQueue[tuple[Role, Event]] = queue.SimpleQueue()
        self._errors: dict[Role, SatrapError] = {}
        self._interrupts, self._stop_until = 0, 0.0
        self._handlers: dict[signal.Signals, Any] = {}
        self._store: Any = None
        self._step = 0
        self.addresses: tuple[str, ...] = ()
        self._metrics: Sequence[str | None] = ()
        self._journals: Path | None = None
        self._snapshots, self.restarts, self._most_restarts, self.repeated = False, 0, 0, 0

    def __enter__(self) -> Launcher:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, error: object, *_: object) -> None:
        servers = self.loaders + self.embedding_workers + self.shards
        for role in self.workers + (servers if error else []):
            role.send(signal.SIGKILL)
        for role in servers:
            role.release()
        for role in self.workers + servers:
            role.end(STOP_SECONDS)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _interrupt(self, _: int, __: FrameType | None) -> None:
        self._interrupts += 1

    def _hear(self, role: Role, event: Event) -> None:
        self._heard.put((role, event))

    def start_shards(
        self,
        metrics: Sequence[str | None],
        *,
        journals: Path | None = None,
        snapshots: bool = False,
        restarts: int = 0,
    ) -> tuple[str, ...]:
        """Start shard servers on free ports; return their addresses once they are ready.

        Args:
            metrics: HOST:PORT of each one's metrics; None without.
            journals: folder of their journals; a shard that is killed then comes back. None: none are kept.
            snapshots: the run takes snapshots, from which workers can start again.
            restarts: how often roles may be started again, in all.

        Raises:
            ExchangeError: one does not become ready.
            KeyboardInterrupt: Ctrl-C.
        """
        self._journals, self._snapshots, self._metrics = journals, snapshots, metrics
        self._most_restarts = restarts
        self.shards = [self._shard(i, "127.0.0.1:0") for i in range(len(metrics))]
        self.addresses = self._ready(self.shards)
        return self.addresses

    def _shard(self, index: int, listen: str) -> Role:
        command = ["shard"]
        if self._journals is not None:
            command += ["--journal", str((self._journals / f"shard-{index}").absolute())]
        return self._server(f"shard {index}", command, self._metrics[index], listen)

    def start_loaders(self, folder: RunFolder, recipe: Recipe) -> tuple[str, ...]:
        """Start the loaders a recipe asks for, on free ports; return their addresses once they are ready.

        Raises:
            ExchangeError: one does not become ready.
            KeyboardInterrupt: Ctrl-C.
        """
        self._start_loader = partial(self._loader, str(folder.recipe_file.absolute()), recipe)
        self.loaders = [self._start_loader(i) for i in range(recipe.sections.cluster.loaders)]
        self._loader_addresses = self._ready(self.loaders)
        return self._loader_addresses

    def _loader(self, recipe_file: str, recipe: Recipe, number: int, listen: str = "127.0.0.1:0") -> Role:
        keys = recipe.sections.cluster
        metrics = metrics_address(keys, keys.shards + keys.workers + number)
        return self._server(f"loader {number}", ["loader", recipe_file], metrics, listen)

    def start_embedding_workers(self, recipe: Recipe) -> tuple[str, ...]:
        """Start the embedding workers a recipe asks for, on free ports; return their addresses once ready.

        Raises:
            ExchangeError: one does not become ready.
            KeyboardInterrupt: Ctrl-C.
        """
        keys = recipe.sections.cluster
        first = keys.shards + keys.workers + keys.loaders
        command = ["embedding-worker", "--shards", ",".join(self.addresses)]
        self.embedding_workers = [
            self._server(f"embedding worker {i}", command, metrics_address(keys, first + i))
            for i in range(keys.embedding_workers)
        ]
        return self._ready(self.embedding_workers)

    def _revive_loaders(self) -> None:
        """Start loaders that have died again, at their addresses: workers ask them for the next batch."""
        for number, role in enumerate(self.loaders):
            if role.code is not None and not self._interrupts and self._loader_restarts < LOADER_RESTARTS:
                self._loader_restarts += 1
                role.end(1.0)
                count = f"restart {self._loader_restarts} of {LOADER_RESTARTS}"
                self._notice(f"{role.name} {role.ending} ({role.traces}): it is started again ({count})")
                self.loaders[number] = self._start_loader(number, self._loader_addresses[number])

    def _server(
        self, name: str, command: Sequence[str], metrics: str | None, listen: str = "127.0.0.1:0"
    ) -> Role:
        options = [
            "--listen",
            listen,
            "--stop-at-eof",
            "--events",
            *(["--metrics", metrics] if metrics else []),
        ]
        return Role(name, [sys.executable, "-m", "satrap.cli", *command, *options], self._hear)

    def _ready(self, roles: Sequence[Role]) -> tuple[str, ...]:
        """Return the addresses of servers that have just been started, once all are ready."""
        ready: dict[Role, str] = {}
        limit = time.monotonic() + READY_SECONDS
        while len(ready) < len(roles):
            for role, event in self._events():
                if isinstance(event, Ready):
                    ready[role] = event.address
            if self._interrupts:
                raise KeyboardInterrupt
            self._check()
            if time.monotonic() > limit:
                late = next(role for role in roles if role not in ready)
                raise ExchangeError(f"{late.name} was not ready after {READY_SECONDS:g} s", where=late.traces)
        return tuple(ready[role] for role in roles)

    def _restart_shards(self) -> None:
        """Start shards again that were killed and have a journal, at their old addresses."""
        if self._journals is None or not self.addresses:
            return
        for i, role in enumerate(self.shards):
            # One that ended by itself said why, and would again.
            if role.code is not None and role.code < 0 and self.restarts < self._most_restarts:
                self._restart(i)
                self._notice(f"[{role.name}] {role.ending}; training waits for it ({self._count()})")

    def _restart(self, shard: int) -> None:
        self.restarts += 1
        self.shards[shard].end(1.0)
        self.shards[shard] = self._shard(shard, self.addresses[shard])

    def _count(self) -> str:
        return f"restart {self.restarts} of {self._most_restarts}"

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

    def regroup(self, error: LostWorkersError, step: int | None) -> None:
        """End what is left of the workers, start lost shards without rows, and say what is done again.

        Args:
            error: what happened.
            step: of the newest snapshot, None without.
        """
        for role in self.workers:
            role.send(signal.SIGKILL)
        for role in self.workers:
            role.end(STOP_SECONDS)
            self._errors.pop(role, None)
        self._pass_on(None)
        self.workers = []
        self.restarts += 1
        for i, role in enumerate(self.shards):
            if role.code is not None:
                if self._journals is not None:
                    shutil.rmtree(self._journals / f"shard-{i}", ignore_errors=True)
                self.restarts -= 1
                self._restart(i)
        lost = max(self._step - (step or 0), 0)
        self.repeated += lost
        origin = (
            "the beginning: there is no snapshot yet" if step is None else f"the snapshot of step {step:,}"
        )
        self._notice(
            f"{error.what} ({error.where.partition(';')[0]}): all workers start again from {origin}; about "
            f"{lost:,} steps are done again ({self._count()})"
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
            self._revive_loaders()
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
        for role, event in self._events():
            match event:
                case Recovering(source):
                    self._notice(f"[{role.name}] lost; restarting from {source}")
                case Stepped(progress):
                    self._step = progress.step
                case Trained(result, test) if folder is not None:
                    outcome = Outcome(folder, result, test)
                case Failed(error):
                    self._errors[role] = error
                case Notice(text):
                    self._notice(text)
            for observer in observers:
                tell(observer, event)
        return outcome

    def _events(self) -> Iterator[tuple[Role, Event]]:
        """Yield what roles have reported, after a short wait; pass their logs on."""
        wait = _TICK
        while True:
            try:
                role, event = self._heard.get(timeout=wait)
            except queue.Empty:
                return
            wait = 0.0
            if isinstance(event, Logged):
                self._notice(f"[{role.name}] {event.line}")
            else:
                yield role, event

    def _mind_interrupts(self) -> None:
        if self._interrupts > 1:
            raise InterruptedRunError(
                "interrupted twice: all processes were killed, and the state was not saved"
            )
        if self._interrupts and not self._stop_until:
            self._stop_until = time.monotonic() + self._grace
            self._notice("saving after this step; Ctrl-C again to kill")
            for role in self.workers:
                role.send(signal.SIGINT)
        if self._stop_until and time.monotonic() > self._stop_until:
            raise InterruptedRunError(
                f"interrupted; the workers had not stopped after {self._grace:g} s and were killed",
                why="the state since the newest snapshot was not saved",
                fix="raise cluster.grace",
            )

    def _lost(self) -> list[Role]:
        """Return the roles that have ended as they should not; the likeliest cause first."""
        final = not self.workers or self._interrupts or self._loader_restarts >= LOADER_RESTARTS
        always = self.shards + self.embedding_workers
        servers = [r for r in always + (self.loaders if final else []) if r.code is not None]
        told = list(self._errors)  # who is told of first is the likelier cause
        workers = [
            role
            for role in self.workers
            if role.code not in (None, 0, INTERRUPTED)
            and not isinstance(self._errors.get(role), InterruptedRunError)
        ]
        first = {role: told.index(role) if role in told else len(told) for role in workers}
        return servers + sorted(workers, key=lambda role: (role.code == PEER_LOST, first[role]))

    def _check(self) -> None:
        """Raise the error of a role that was lost, if one was that cannot come back."""
        self._restart_shards()
        if not self._lost():
            return
        until = time.monotonic() + _SETTLE
        while time.monotonic() < until:
            for role, event in self._events():
                if isinstance(event, Failed):
                    self._errors[role] = event.error
        lost = self._lost()
        if not lost:
            return
        role = lost[0]
        told = self._errors.get(role)
        again = self._snapshots and self.addresses and self.restarts < self._most_restarts
        if again and not self._stop_until and all(map(self._may_return, lost)):
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
            why=self._consequence(role),
            fix="look for its lines above; if the system killed it, it may have run out of memory",
        )

    def _consequence(self, lost: Role) -> str:
        if self.restarts and self.restarts == self._most_restarts:
            return f"roles were restarted {self.restarts} times before; cluster.restarts allows no more"
        if lost in self.shards:
            return "the rows it held are lost, and the run with them"
        if lost in self.embedding_workers:
            return "the workers it served get no more rows, and what it had not pushed is lost"
        if lost in self.loaders:
            return "the workers it read for get no more batches"
        return "the others cannot go on alone"

    def _may_return(self, role: Role) -> bool:
        """Whether a role ended by something that need not happen again."""
        killed = role.code is not None and role.code < 0
        if role in self.embedding_workers:
            return False
        if role in self.loaders:  # they have been started again as often as they may
            return False
        if role in self.shards:  # a journal that brings it back no more: the newest snapshot does
            return killed or self._journals is not None
        return killed or (role.code == PEER_LOST and isinstance(self._errors.get(role), ExchangeError))
