"""A run in several processes: shards hold the rows, workers train, a supervisor keeps them alive."""

from __future__ import annotations

import secrets
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from satrap.checkpoint import Series
from satrap.config import Recipe
from satrap.launch.dry_run import dry_run
from satrap.launch.endpoints import metrics_address
from satrap.launch.events import tell
from satrap.launch.folder import RunFolder
from satrap.launch.launcher import Launcher, Role
from satrap.launch.local_launcher import LocalLauncher
from satrap.launch.outcome import Outcome
from satrap.launch.supervisor import (
    Action,
    FindSnapshot,
    Finish,
    Say,
    StartServer,
    StartWorkers,
    StopRole,
    Supervisor,
    Tell,
)
from satrap.launch.worker import Assignment
from satrap.schema import Schema
from satrap.train import Checkpointing, Observer

_TICK = 0.1


def run(
    recipe: Recipe,
    schema: Schema,
    folder: RunFolder,
    plan: Checkpointing,
    resume: bool = False,
    *,
    observers: Sequence[Observer] = (),
    notice: Callable[[str], None],
) -> Outcome:
    """Train a recipe with the shards and workers it names, as processes on this machine.

    `Supervisor` describes what happens when one of them dies.

    Args:
        recipe: what to do.
        schema: labels and features, measured.
        folder: of the run.
        plan: where snapshots go.
        resume: continue from the newest one.
        observers: notified of evaluations, and of steps a few times a second.
        notice: called with each line of the roles' logs, with the role's name in front.

    Raises:
        ConfigError, DataError: the user's input.
        TrainingError: the run had to stop.
        ExchangeError: a shard or worker was lost; all others have been ended.
        InterruptedRunError: Ctrl-C, and the workers could not save in time; a second Ctrl-C kills at once.
        KeyboardInterrupt: Ctrl-C before the first step.
    """
    dry_run(recipe, schema)
    keys = recipe.sections.cluster
    journal = recipe.sections.checkpoint.durability == "journal"
    supervisor = Supervisor(keys, journal=journal, snapshots=plan.every_steps is not None)
    shutil.rmtree(folder.journals, ignore_errors=True)  # from an earlier attempt: this one starts afresh
    where, plain = str(folder.path.absolute()), schema.to_dict()
    assignment = Assignment(where, plain, 0, keys.workers, "", (), run=secrets.token_hex(8), resume=resume)
    with _interrupts() as interrupts, closing(LocalLauncher()) as launcher:
        cluster = _Cluster(recipe, folder, assignment, supervisor, launcher, observers, notice)
        while not supervisor.finished:
            cluster.do(supervisor.decide(time.monotonic(), len(interrupts)))
            for name, event in launcher.events(_TICK):
                cluster.do(supervisor.heard(name, event))
    assert supervisor.trained is not None
    outcome = Outcome(folder, supervisor.trained.result, supervisor.trained.test)
    if supervisor.restarts:
        again = {"restarts": supervisor.restarts, "repeated_steps": supervisor.repeated}
        folder.write_metrics({**outcome.metrics, **again})
    shutil.rmtree(folder.journals, ignore_errors=True)
    return outcome


@contextmanager
def _interrupts() -> Iterator[Sequence[int]]:
    """Collect Ctrl-C and SIGTERM while this context is open."""
    received: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = {number: signal.signal(number, lambda n, _: received.append(n)) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Cluster:
    """Carries out the decisions of a supervisor.

    Args:
        recipe, folder: of the run.
        assignment: of each worker; rank, addresses, generation and meeting point are filled in.
        supervisor: knows the servers' addresses.
        launcher: starts and stops the roles.
        observers, notice: see `run`.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        assignment: Assignment,
        supervisor: Supervisor,
        launcher: Launcher,
        observers: Sequence[Observer],
        notice: Callable[[str], None],
    ) -> None:
        self._recipe, self._folder, self._assignment = recipe, folder, assignment
        self._supervisor, self._launcher = supervisor, launcher
        self._observers, self._notice = observers, notice
        self._store: Any = None  # lives as long as workers may meet there

    def do(self, actions: Sequence[Action]) -> None:
        """Carry out actions in order.

        Raises:
            SatrapError, KeyboardInterrupt: the run is over.
        """
        for action in actions:
            match action:
                case StartServer():
                    self._start_server(action)
                case StartWorkers():
                    self._start_workers(action)
                case StopRole(name, how):
                    self._launcher.stop(name, how)
                case FindSnapshot():
                    step = Series(self._folder.snapshots(self._recipe)).latest()
                    self.do(self._supervisor.restart_workers(step))
                case Say(text):
                    self._notice(text)
                case Tell(event):
                    for observer in self._observers:
                        tell(observer, event)
                case Finish(error) if error is not None:
                    raise error

    def _start_server(self, action: StartServer) -> None:
        sections = self._recipe.sections
        keys, (kind, number) = sections.cluster, action.name.rsplit(" ", 1)
        match kind:
            case "shard":
                before, command = 0, ["shard"]
                journal = self._folder.journals.absolute() / f"shard-{number}"
                if action.fresh:
                    shutil.rmtree(journal, ignore_errors=True)
                if sections.checkpoint.durability == "journal":
                    command += ["--journal", str(journal)]
            case "loader":
                before = keys.shards + keys.workers
                command = ["loader", str(self._folder.recipe_file.absolute())]
            case _:
                before = keys.shards + keys.workers + keys.loaders
                command = ["embedding-worker", "--shards", ",".join(self._supervisor.addresses("shard"))]
        metrics = metrics_address(keys, before + int(number))
        options = ["--stop-at-eof", "--events", *(["--metrics", metrics] if metrics else [])]
        self._launcher.start(
            Role(action.name, ["-m", "satrap.cli", *command, *options], listen=action.address)
        )

    def _start_workers(self, action: StartWorkers) -> None:
        if action.generation and action.step is None:
            self._folder.history_file.unlink(missing_ok=True)
        assignment, addresses = self._assignment, self._supervisor.addresses
        for rank, store in enumerate([self._meeting_point()] * assignment.world):
            line = replace(
                assignment,
                rank=rank,
                store=store,
                shards=addresses("shard"),
                loaders=addresses("loader"),
                embedding_workers=addresses("embedding worker"),
                generation=action.generation,
                resume=action.step is not None if action.generation else assignment.resume,
            ).to_json()
            self._launcher.start(Role(f"worker {rank}", ["-m", "satrap.launch"], line))

    def _meeting_point(self) -> str:
        """Open the store where workers find each other, on loopback only; "" for one worker alone."""
        if self._assignment.world == 1:
            return ""
        listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        port = listening.getsockname()[1]
        c10d: Any = dist
        self._store = c10d.TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        return f"127.0.0.1:{port}"
