"""A run in several processes: shards hold the rows, workers train, a supervisor keeps them alive."""

import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from satrap.checkpoint import Series
from satrap.config import Recipe
from satrap.config.checks.tables import kept
from satrap.config.keys.cluster import ClusterKeys
from satrap.errors import SatrapError
from satrap.exchange.collective import Placement
from satrap.launch.cluster.actions import (
    Action,
    ChangeWorkers,
    FindSnapshot,
    Finish,
    GiveOrder,
    KeepMap,
    MakeRoom,
    MakeShardRoom,
    ReplyToRequest,
    Say,
    StartServer,
    StartWorkers,
    StopRole,
    Tell,
)
from satrap.launch.cluster.control_requests import Mailbox, MapLog
from satrap.launch.cluster.shard_requests import ShardRequests, obstacles
from satrap.launch.cluster.supervisor import Supervisor
from satrap.launch.cluster.worker import Assignment
from satrap.launch.cluster.worker_events import tell
from satrap.launch.cluster.worker_requests import begun_with, keep_workers, with_workers
from satrap.launch.dry_run import dry_run
from satrap.launch.folder.endpoints import metrics_address
from satrap.launch.folder.identity import Identity
from satrap.launch.folder.open_run import prepared
from satrap.launch.folder.outcome import RunOutcome
from satrap.launch.folder.prometheus_targets import Targets
from satrap.launch.folder.resume import signal_handlers
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.launchers.fork_server import ForkServer, fork_server, works
from satrap.launch.launchers.launcher import Launcher, Role
from satrap.launch.launchers.local_launcher import LocalLauncher
from satrap.launch.launchers.ray_launcher import RayLauncher
from satrap.launch.mesh_summary import described_mesh
from satrap.launch.placement import placement_of
from satrap.runtime.events import Event
from satrap.schema import Schema
from satrap.train import Observer

_TICK = 0.1


def run(
    recipe: Recipe,
    folder: RunFolder,
    resume: bool,
    *,
    trial: bool = False,
    observers: Sequence[Observer] = (),
    notice: Callable[[str], None],
) -> RunOutcome:
    """Train a recipe with its workers and shards as separate processes.

    `Supervisor` describes the handling of dead processes. `observers` are called for evaluations, and for
    steps a few times per second. `notice` gets each line of the roles' logs, prefixed with the role's name.
    `trial`: as for `satrap.launch.train`.

    Errors are as for `satrap.launch.train`, but Ctrl-C before the first step raises KeyboardInterrupt.
    InterruptedRunError: after Ctrl-C the workers could not save in time, or a second Ctrl-C killed them.
    """
    with _server(recipe) as server:
        schema, plan = prepared(recipe, folder, resume, notice)
        if text := described_mesh(recipe, schema):
            notice(text)
        dry_run(recipe, schema)
        identity = Identity.of(folder.identity_file)
        assignment = assigned(recipe, schema, folder, identity, notice)
        assignment = replace(assignment, resume=resume, trial=trial)
        keys = without_idle_shards(recipe, assignment)
        journal = recipe.sections.checkpoint.durability == "journal"
        requests, maps = _requests(recipe, keys, folder, resume, notice)
        snapshots = plan.every_steps is not None
        supervisor = Supervisor(keys, journal=journal, snapshots=snapshots, requests=requests)
        shutil.rmtree(folder.journals, ignore_errors=True)  # left by an earlier attempt
        shards = set(maps.map.members) if keys.servers else set()
        launcher = _launcher(recipe, identity.run, folder, shards, notice, server)
        mailbox = Mailbox(folder.requests)
        begun = recipe.sections.cluster
        cluster = _ClusterActions(
            recipe,
            folder,
            identity,
            assignment,
            supervisor,
            launcher,
            observers,
            notice,
            mailbox,
            maps,
            begun,
            shards,
        )
        _lead(cluster)
        assert supervisor.trained is not None
        outcome = RunOutcome(folder, supervisor.trained.result, supervisor.trained.test)
        if supervisor.restarts:
            restarts = {"restarts": supervisor.restarts, "repeated_steps": supervisor.repeated}
            folder.write_metrics({**outcome.metrics, **restarts})
        shutil.rmtree(folder.journals, ignore_errors=True)
        return outcome


def _lead(cluster: "_ClusterActions") -> None:
    """Carry out the supervisor's decisions until the run has ended."""
    supervisor, launcher, mailbox = cluster.supervisor, cluster.launcher, cluster.mailbox
    interrupts: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    handlers = signal_handlers(dict.fromkeys(signals, lambda number, _: interrupts.append(number)))
    with handlers, closing(launcher), mailbox.open(), closing(Targets(cluster.folder)) as targets:
        while not supervisor.finished:
            for request in mailbox.requests():
                cluster.do(supervisor.asked(request))
            cluster.do(supervisor.decide(time.monotonic(), len(interrupts)))
            for name, event in launcher.events(_TICK):
                targets.heard(name, event)
                cluster.do(supervisor.heard(name, event))
            targets.keep_workers(cluster.assignment.world)
            targets.remove(supervisor.gone)
            cluster.give_back()


def _server(recipe: Recipe) -> AbstractContextManager[ForkServer | None]:
    """Return the fork server for roles on this machine; it imports while this process reads the data."""
    if recipe.sections.cluster.launcher != "local" or not works():
        return nullcontext()
    return fork_server(["satrap.cli.role_imports"])


def assigned(
    recipe: Recipe, schema: Schema, folder: RunFolder, identity: Identity, notice: Callable[[str], None]
) -> Assignment:
    """Return worker 0's assignment, the template for all workers, without addresses of other processes."""
    keys, where = recipe.sections.cluster, str(folder.path.absolute())
    key = "" if keys.key is None else str(Path(keys.key).absolute())
    placement = asdict(placement_of(recipe, folder, notice))
    return Assignment(
        where, schema.to_dict(), 0, keys.workers, "", (), key=key, run=identity.run, placement=placement
    )


def without_idle_shards(recipe: Recipe, assignment: Assignment) -> ClusterKeys:
    """Return the run's processes: without shards if several workers hold all tables."""
    keys, placement = recipe.sections.cluster, Placement(**assignment.placement)
    tables = kept(recipe.sections) if keys.exchange == "servers" and assignment.world > 1 else {}
    if not tables or any(placement.of(table) != "replicated" for table in tables):
        return keys
    return keys.model_copy(update={"shards": 0, "addresses": []})


def _requests(
    recipe: Recipe, started: ClusterKeys, folder: RunFolder, resume: bool, notice: Callable[[str], None]
) -> tuple[ShardRequests, MapLog]:
    """Return the handler of shard requests, and the shard map of the stopped run."""
    fixed, foreign = obstacles(recipe)
    keys = recipe.sections.cluster
    if not fixed and not started.shards:
        fixed = "the workers hold all tables (cluster.placement: row_wise moves them to shards)"
    maps = MapLog.of(folder.shards_file, len(keys.addresses) or keys.shards, resume=resume and not fixed)
    if maps.entries:
        notice(f"shards after the last move: {', '.join(map(str, maps.map.members))}")
    return ShardRequests(maps.map, fixed=fixed, foreign=foreign), maps


def _launcher(
    recipe: Recipe,
    run: str,
    folder: RunFolder,
    shards: set[int],
    notice: Callable[[str], None],
    server: ForkServer | None,
) -> Launcher:
    """Return the launcher of `cluster.launcher`; Ray's launcher connects and reserves resources."""
    keys = recipe.sections.cluster
    if keys.launcher == "local":
        return LocalLauncher(server=server)
    key = [str(Path(keys.key).absolute())] if keys.key else []
    path = folder.path.absolute()
    needs = [str(path), *key]
    where = str(Path.cwd())
    return RayLauncher(
        keys, run=run, folder=where, needs=needs, notice=notice, label=path.name, shards=shards
    )


@dataclass
class _ClusterActions:
    """Carries out the decisions of a supervisor.

    Adds rank, addresses, generation and rendezvous address to the assignment of each worker. `begun` has the
    initial keys of the run, which determine the metrics ports.
    """

    recipe: Recipe
    folder: RunFolder
    identity: Identity
    assignment: Assignment
    supervisor: Supervisor
    launcher: Launcher
    observers: Sequence[Observer]
    notice: Callable[[str], None]
    mailbox: Mailbox
    maps: MapLog
    begun: ClusterKeys
    shards: set[int]  # numbers of shards with reserved resources
    store: Any = None  # kept alive for the workers' rendezvous

    def __post_init__(self) -> None:
        self._room = self.begun  # keys whose roles have reserved resources, except shards

    def give_back(self) -> None:
        """Release the resources of shards that have left and ended."""
        gone = {int(name.rpartition(" ")[2]) for name in self.supervisor.gone}
        if gone & self.shards:
            self.shards -= gone
            self.launcher.release(self._room, self.shards)

    def do(self, actions: Sequence[Action]) -> None:
        """Carry out actions in order; raise the SatrapError or KeyboardInterrupt that ends the run."""
        for action in actions:
            match action:
                case StartServer():
                    self._start_server(action)
                case StartWorkers():
                    self._start_workers(action)
                case StopRole(name, how):
                    self.launcher.stop(name, how)
                case FindSnapshot():
                    step = Series(self.folder.snapshots(self.recipe)).latest()
                    self.do(self.supervisor.restart_workers(step))
                case (
                    GiveOrder()
                    | KeepMap()
                    | MakeRoom()
                    | MakeShardRoom()
                    | ChangeWorkers()
                    | ReplyToRequest()
                ):
                    self._about_requests(action)
                case Say(text):
                    self.notice(text)
                case Tell(event):
                    self._tell(event)
                case Finish(error) if error is not None:
                    raise error

    def _tell(self, event: Event) -> None:
        for observer in self.observers:
            tell(observer, event)

    def _make_room(self, workers: int) -> SatrapError | None:
        try:
            keys = with_workers(self.recipe, workers, self.begun.workers).sections.cluster
            self.launcher.reserve(keys, self.shards)
        except SatrapError as error:
            return error
        self._room = keys
        return None

    def _make_shard_room(self, shard: int) -> SatrapError | None:
        try:
            self.launcher.reserve(self._room, {*self.shards, shard})
        except SatrapError as error:
            return error
        self.shards.add(shard)
        return None

    def _change_workers(self, workers: int) -> None:
        before = begun_with(self.folder, self.recipe)
        self.recipe = with_workers(self.recipe, workers, self.begun.workers)
        keep_workers(self.folder, before, self.recipe)
        self.assignment = replace(self.assignment, world=workers)
        if self.begun.exchange == "collective":  # shards keep their tables
            placement = asdict(placement_of(self.recipe, self.folder, self.notice))
            self.assignment = replace(self.assignment, placement=placement)

    def _about_requests(
        self, action: GiveOrder | KeepMap | MakeRoom | MakeShardRoom | ChangeWorkers | ReplyToRequest
    ) -> None:
        match action:
            case GiveOrder(None):
                self.mailbox.withdraw()
            case GiveOrder(order) if order is not None:
                self.mailbox.give(order)
            case KeepMap(map, entry):
                self.maps.keep(map, entry)
            case MakeRoom(workers):
                self.do(self.supervisor.has_room(self._make_room(workers)))
            case MakeShardRoom(shard):
                self.do(self.supervisor.shard_has_room(self._make_shard_room(shard)))
            case ChangeWorkers(workers):
                self._change_workers(workers)
            case ReplyToRequest(request, answer):
                self.mailbox.reply(request, answer)

    def _start_server(self, action: StartServer) -> None:
        sections = self.recipe.sections
        keys, (kind, number) = self.begun, action.name.rsplit(" ", 1)
        match kind:
            case "shard":
                roles = keys.servers + keys.workers + keys.loaders + keys.embedding_workers
                before, command = 0 if int(number) < keys.servers else roles - keys.servers, ["shard"]
                journal = self.folder.journals.absolute() / f"shard-{number}"
                if action.fresh:
                    shutil.rmtree(journal, ignore_errors=True)
                if sections.checkpoint.durability == "journal":
                    command += ["--journal", str(journal)]
            case "loader":
                before = keys.servers + keys.workers
                command = ["loader", str(self.folder.recipe_file.absolute())]
            case _:
                before = keys.servers + keys.workers + keys.loaders
                command = ["embedding-worker", "--shards", ",".join(self.supervisor.addresses("shard"))]
        metrics = metrics_address(keys, before + int(number))
        options = ["--stop-at-eof", "--events", *(["--metrics", metrics] if metrics else [])]
        options += ["--key", self.assignment.key] if self.assignment.key else []
        self.launcher.start(
            Role(action.name, ["-m", "satrap.cli", *command, *options], listen=action.address)
        )

    def _start_workers(self, action: StartWorkers) -> None:
        if action.generation and action.step is None:
            self.folder.history_file.unlink(missing_ok=True)
        assignment, addresses = self.assignment, self.supervisor.addresses
        generation = self.identity.next()
        self._room = self.recipe.sections.cluster
        self.launcher.release(self._room, self.shards)
        for rank, store in enumerate([self._meeting_point()] * assignment.world):
            line = replace(
                assignment,
                rank=rank,
                store=store,
                shards=addresses("shard"),
                loaders=addresses("loader"),
                embedding_workers=addresses("embedding worker"),
                generation=generation,
                map=self.maps.map.to_dict() if self.maps.map.runs else {},
                resume=action.step is not None if action.generation else assignment.resume,
            ).to_json()
            self.launcher.start(Role(f"worker {rank}", ["-m", "satrap.launch"], line))

    def _meeting_point(self) -> str:
        """Open the rendezvous store of the workers and return its address; "" for a single worker."""
        if self.assignment.world == 1:
            return ""
        host = self.launcher.host
        listening = socket.create_server((host, 0), backlog=256)
        port = listening.getsockname()[1]
        c10d: Any = dist
        self.store = c10d.TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        return f"{host}:{port}"
