"""The process of one worker: reads its assignment, trains, and reports to the launcher."""

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from satrap.config import Recipe, load
from satrap.data.remote.client import RemoteData
from satrap.dense import ConnectedWorkers, WorkerGroup, Workers
from satrap.embedding.workers import PooledExchange
from satrap.errors import ExchangeError, SatrapError
from satrap.exchange import Exchange
from satrap.exchange.collective import Alone, CollectiveExchange, FreshReplicas, Placement, Ranks
from satrap.exchange.servers import ClientOptions, ServersExchange, ShardMap, WorkerId
from satrap.exchange.wrappers.broadcast import for_group
from satrap.exchange.wrappers.routed import RoutedExchange
from satrap.launch import code_snapshot
from satrap.launch.build import mesh_of, pools, store_of, wire_of
from satrap.launch.cluster.control_requests import FolderDesk, Mailbox
from satrap.launch.cluster.shard_requests import obstacles
from satrap.launch.cluster.worker_events import Forward, Trained
from satrap.launch.cluster.worker_requests import check_devices
from satrap.launch.fit import fit
from satrap.launch.folder.run_folder import RunFolder
from satrap.rpc import read_key
from satrap.runtime.events import Failed, Notice, Outlet, Report
from satrap.runtime.torchrun import address_towards
from satrap.schema import Schema, Table
from satrap.settings.wire import Wire
from satrap.store import StoreConfig
from satrap.train import Trainer, WorkerContext
from satrap.train.worker_context import WRITING_SECONDS, OpenData, torch_ranks

FAILED, INTERRUPTED, PEER_LOST = 1, 130, 3
"""Exit codes; PEER_LOST means that the cause is in another process."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The launcher's message to a worker; every address is HOST:PORT."""

    folder: str  # run folder with the recipe
    schema: dict[str, Any]  # measured labels and features, as plain data
    rank: int
    world: int  # number of workers
    store: str  # rendezvous address; empty for a single worker
    shards: tuple[str, ...]  # empty: the workers hold all rows
    loaders: tuple[str, ...] = ()  # empty: the worker reads its rows itself
    key: str = ""  # file with the cluster's key; empty on loopback
    embedding_workers: tuple[str, ...] = ()  # empty: the worker handles ids itself
    generation: int = 0  # number of earlier starts of the workers
    run: str = ""  # identity of the run, by which shards detect other runs
    resume: bool = False  # continue from the newest snapshot
    placement: dict[str, Any] = field(default_factory=dict)  # arguments of `Placement`
    trial: bool = False  # as in `WorkerContext`
    map: dict[str, Any] = field(default_factory=dict)  # shard map; empty: an even split

    def to_json(self) -> str:
        """Return the assignment as one line."""
        return json.dumps(asdict(self))


def assignment_of(plain: Mapping[str, Any]) -> Assignment:
    """Return the assignment of plain data."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
    return Assignment(**values)


def connect(recipe: Recipe, assignment: Assignment) -> WorkerContext:
    """Connect to the workers of an assignment, on one machine or through Ray; return the worker's context."""
    workers, rank, world = Workers(), assignment.rank, assignment.world
    if world > 1:
        workers = ConnectedWorkers(
            assignment.store,
            rank,
            world,
            host=address_towards(assignment.store),
            device=device_of(recipe, rank, world),
            deadline=recipe.sections.cluster.deadline,
            wire=wire_of(recipe),
            mesh=mesh_of(recipe),
        )
    return context_of(recipe, assignment, workers, rank, world)


def context_of(
    recipe: Recipe, assignment: Assignment, workers: Workers, local_rank: int, local: int
) -> WorkerContext:
    """Return a worker's context: its shards, data, device and threads.

    Args:
        recipe: recipe of the run.
        assignment: assignment of the worker.
        workers: all workers, as seen from this worker.
        local_rank: its number among the workers on its machine.
        local: number of workers on its machine.
    """
    cluster, training = recipe.sections.cluster, recipe.sections.training

    def exchange(tables: Sequence[Table]) -> Exchange:
        share, store, wire = workers.data, store_of(recipe), wire_of(recipe)
        mode = "sync" if training.mode == "sync" and not training.lookahead else "hybrid"
        worker = WorkerId(share.rank, share.size, assignment.generation, assignment.run)
        options = _client_options(recipe, assignment)
        if cluster.exchange == "collective":
            ranks, placed = _ranks(workers, cluster.deadline), Placement(**assignment.placement)
            return CollectiveExchange(
                ranks, tables, store=store, wire=wire, placement=placed, pools=pools(recipe)
            )
        if not assignment.embedding_workers:
            hot = _replicated(assignment, tables)
            if hot and len(hot) == len(tables):
                return _replicas(hot, workers, store, wire)
            servers = ServersExchange(
                assignment.shards,
                [table for table in tables if table not in hot],
                store=store,
                wire=wire,
                mode=mode,
                ordered=_order_decides(store, tables),
                worker=worker,
                map=ShardMap.from_dict(assignment.map) if assignment.map else None,
                shares=cluster.servers or None,
                options=options,
            )
            return _joined(servers, hot, workers, store) if hot else servers
        number = share.rank % len(assignment.embedding_workers)
        return PooledExchange(
            f"embedding worker {number}",
            assignment.embedding_workers[number],
            assignment.shards,
            Schema.from_dict(assignment.schema),
            tables,
            store=store,
            wire=wire,
            mode=mode,
            worker=worker,
            options=options,
        )

    data = _data(recipe, assignment, workers.data)
    device, trial = device_of(recipe, local_rank, local), assignment.trial
    threads = _threads(recipe, local) if assignment.world > 1 else None
    made = for_group(workers.peers, exchange)
    return WorkerContext(made, workers, threads, device=device, data=data, trial=trial)


def _replicated(assignment: Assignment, tables: Sequence[Table]) -> list[Table]:
    """Return the tables that every worker holds; with one worker, shards hold all tables if there are any."""
    placement = Placement(**assignment.placement)
    several = assignment.world > 1 or not assignment.shards
    return [table for table in tables if placement.of(table.name) == "replicated" and several]


def _threads(recipe: Recipe, local: int) -> int:
    """Return the number of compute threads of each worker on a machine."""
    cluster = recipe.sections.cluster
    cores = cluster.resources.worker.cpu if cluster.launcher == "ray" else (os.cpu_count() or 1) // local
    return max(1, int(cores))


def _joined(servers: ServersExchange, hot: Sequence[Table], workers: Workers, store: StoreConfig) -> Exchange:
    """Return an exchange with replicas of some tables at all workers."""
    try:
        replicas = _replicas(hot, workers, store, servers.wire)
    except SatrapError:
        servers.close()
        raise
    return RoutedExchange(servers, replicas)


def _replicas(tables: Sequence[Table], workers: Workers, store: StoreConfig, wire: Wire) -> FreshReplicas:
    # A worker that waits for a shard delays the others, so the deadline is long; heartbeats show it is alive.
    return FreshReplicas(_ranks(workers, WRITING_SECONDS), tables, store=store, wire=wire)


def _ranks(workers: Workers, deadline: float) -> Ranks:
    return torch_ranks(workers, deadline) if isinstance(workers, ConnectedWorkers) else Alone()


def _order_decides(store: StoreConfig, tables: Sequence[Table]) -> bool:
    """Return whether the set of rows depends on the order of lookups."""
    admissions = [table.admission_or(store.admission) for table in tables]
    chance = any(admission is not None and admission.probability < 1 for admission in admissions)
    return chance or "eviction" in store.bounds(tables).values()


def _data(recipe: Recipe, assignment: Assignment, share: WorkerGroup) -> OpenData | None:
    """Return the function that opens this worker's rows at its loader; None without loaders."""
    if not assignment.loaders:
        return None
    number = share.rank % len(assignment.loaders)

    def open_remote(part: str) -> RemoteData | None:
        data = RemoteData(
            f"loader {number}",
            assignment.loaders[number],
            part,
            Schema.from_dict(assignment.schema),
            worker=share.rank,
            workers=share.size,
            batch_size=recipe.sections.batch_size,
            options=_client_options(recipe, assignment),
        )
        return data if data.exists() else None

    return open_remote


def _client_options(recipe: Recipe, assignment: Assignment) -> ClientOptions:
    key = read_key(Path(assignment.key)) if assignment.key else None
    return ClientOptions(key=key, deadline=recipe.sections.cluster.deadline)


def device_of(recipe: Recipe, local_rank: int, local: int) -> str:
    """Return the device of a worker; with `cuda`, each worker on a machine gets its own device."""
    device = recipe.sections.training.device
    if device != "cuda" or local == 1 or recipe.sections.cluster.launcher == "ray":
        return device
    check_devices(recipe, local)
    torch.cuda.set_device(local_rank)
    return f"cuda:{local_rank}"


def work(assignment: Assignment, report: Report) -> None:
    """Train, see `fit`."""
    folder = RunFolder(Path(assignment.folder))
    recipe = code_snapshot.adopt(load(folder.recipe_file), folder.path)
    context = replace(connect(recipe, assignment), report=report)
    if assignment.shards and not obstacles(recipe)[0]:
        context = replace(context, desk=FolderDesk(Mailbox(folder.requests), report))
    first = assignment.rank == 0

    def notice(text: str) -> None:
        if first:
            report(Notice(text))
        else:
            print(text, file=sys.stderr, flush=True)

    outcome = fit(
        recipe,
        Schema.from_dict(assignment.schema),
        folder,
        context=context,
        observers=[Forward(report)] if first else [],
        notice=notice,
        started=_stop_at_signals,
        resume=assignment.resume,
    )
    if first:
        report(Trained(outcome.result, dict(outcome.test)))
    context.workers.close()


def _stop_at_signals(trainer: Trainer) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: trainer.request_stop())


def end_with_launcher() -> None:
    """Kill this process when standard input ends, that is, with its parent process."""
    while os.read(0, 4096):  # not sys.stdin: the interpreter aborts at exit if a thread holds its lock
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Read the assignment and train; return the exit code."""
    report = Outlet().send
    line = sys.stdin.readline()
    threading.Thread(target=end_with_launcher, daemon=True).start()
    try:
        # Background processes of a shell ignore SIGINT, and SIGINT was blocked during the imports.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        work(assignment_of(json.loads(line)), report)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SatrapError as error:
        report(Failed(error))
        return PEER_LOST if isinstance(error, ExchangeError) else FAILED
    return 0
