"""Runs whose workers are started by `torchrun`, on one machine or several; each worker calls `train`.

Only `torchrun` supervises the workers; with its restarts enabled, it restarts all of them after an error.
Shards are already running, or the workers hold the rows.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from satrap.config import Recipe, load
from satrap.config.checks.combinations import check_combinations
from satrap.errors import ConfigError, ExchangeError, SatrapError, error_of, error_values
from satrap.launch import code_snapshot
from satrap.launch.build import mesh_of, wire_of
from satrap.launch.cluster.control_requests import MapLog
from satrap.launch.cluster.driver import assigned, without_idle_shards
from satrap.launch.cluster.shard_requests import obstacles
from satrap.launch.cluster.worker import Assignment, assignment_of, context_of, device_of
from satrap.launch.dry_run import dry_run
from satrap.launch.fit import fit
from satrap.launch.folder.identity import Identity
from satrap.launch.folder.open_run import opened, prepared
from satrap.launch.folder.outcome import RunOutcome
from satrap.launch.folder.resume import begun, complete, nothing_to_resume, stop_at_signals
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.mesh_summary import described_mesh
from satrap.runtime.torchrun import Torchrun
from satrap.schema import Schema
from satrap.train import Observer
from satrap.train.worker_context import connected


def launched_by_torchrun(recipe: Recipe | None) -> Torchrun | None:
    """Return `torchrun`'s settings for this process; None without it, or if Ray starts the workers."""
    by_ray = recipe is not None and recipe.sections.cluster.launcher == "ray"
    return None if by_ray else Torchrun.from_environment()


def speaks(recipe: Recipe | None) -> bool:
    """Return whether this process prints the progress of a run; among several workers only one prints."""
    launched = launched_by_torchrun(recipe)
    return launched is None or launched.rank == 0


def has_begun(recipe: Recipe, output: str) -> bool | None:
    """Return whether the run of a recipe left a snapshot; as `begun`, rank 0 removes leftovers."""
    launched = launched_by_torchrun(recipe)
    if launched is None:
        return begun(recipe, output)
    recipe = _as_launched(recipe, launched.size)
    if launched.rank == 0:
        return begun(recipe, output)
    return None if complete(recipe, RunFolder(Path(output))) else False


def train(
    launched: Torchrun,
    recipe: Recipe | None,
    output: str | None,
    *,
    resume: bool,
    name: str,
    trial: bool,
    observers: Sequence[Observer],
    notice: Callable[[str], None],
) -> RunOutcome:
    """Train with all processes of `torchrun`, each of which calls this function.

    Rank 0 opens the run folder, which all ranks must reach at the same path, and sends the assignment. Only
    its `observers` and `notice` are called; other ranks write to standard error. Other arguments and errors
    are as for `satrap.launch.train`. If rank 0 cannot start the run, other ranks raise `ExchangeError`.
    """
    if recipe is None:
        raise nothing_to_resume(f"no run in {output}")
    recipe = _as_launched(recipe, launched.size)
    if launched.rank:
        observers, notice = (), _aside(launched.rank)
    workers = connected(
        launched,
        device=device_of(recipe, launched.local_rank, launched.local_size),
        deadline=recipe.sections.cluster.deadline,
        wire=wire_of(recipe),
        mesh=mesh_of(recipe),
    )
    with closing(workers), stop_at_signals() as watch:
        if launched.rank == 0:
            message = _told(recipe, output, resume, name, trial, notice)
            workers.post("run", json.dumps(message).encode())
        assignment, folder = _heard(workers.posted("run", readers=workers.size), launched.rank)
        recipe = code_snapshot.adopt(load(folder.recipe_file), folder.path)
        context = context_of(recipe, assignment, workers, launched.local_rank, launched.local_size)
        return fit(
            recipe,
            Schema.from_dict(assignment.schema),
            folder,
            context=context,
            observers=observers,
            notice=notice,
            started=watch,
            resume=assignment.resume,
        )


def _heard(data: bytes, rank: int) -> tuple[Assignment, RunFolder]:
    """Return the assignment of a rank from rank 0's message, and the run folder, which must be reachable."""
    message = json.loads(data)
    if "error" in message:
        raise (
            error_of(message["error"])
            if rank == 0
            else ExchangeError("worker 0 could not start the run", fix="see the error of worker 0")
        )
    assignment = replace(assignment_of(message), rank=rank)
    folder = RunFolder(Path(assignment.folder))
    if not folder.recipe_file.exists():
        raise ConfigError(
            f"worker {rank} on {socket.gethostname()} cannot read the run folder",
            where=str(folder),
            why="all workers write their parts of snapshots there",
            fix="set --output to a folder that all machines mount at the same path",
        )
    return assignment, folder


def _as_launched(recipe: Recipe, size: int) -> Recipe:
    """Return the recipe for `size` workers; raise `ConfigError` if torchrun cannot train it."""
    check_combinations(recipe.sections, recipe.source, torchrun=True)
    if (workers := recipe.sections.cluster.workers) not in (1, size):
        raise ConfigError(
            f"cluster.workers is {workers}, but torchrun has started {size} processes",
            where=recipe.source.where(("cluster", "workers")),
            fix="remove cluster.workers, or start the same number of processes",
        )
    return recipe.changed({("cluster", "workers"): size})


def _told(
    recipe: Recipe,
    output: str | None,
    resume: bool,
    name: str,
    trial: bool,
    notice: Callable[[str], None],
) -> Mapping[str, Any]:
    """Open the run and return its assignment as plain data, or its "error"."""
    try:
        folder, recipe = opened(recipe, output, resume=resume, name=name, notice=notice)
        try:
            return asdict(_assignment(recipe, folder, resume, trial, notice))
        except (Exception, KeyboardInterrupt):
            if not resume:
                folder.discard()
            raise
    except SatrapError as error:
        return {"error": error_values(error)}


def _assignment(
    recipe: Recipe, folder: RunFolder, resume: bool, trial: bool, notice: Callable[[str], None]
) -> Assignment:
    schema, _ = prepared(recipe, folder, resume, notice)
    if text := described_mesh(recipe, schema):
        notice(text)
    dry_run(recipe, schema)
    identity, cluster = Identity.of(folder.identity_file), recipe.sections.cluster
    number, moves = len(cluster.addresses) or cluster.shards, not obstacles(recipe)[0]
    map = MapLog.of(folder.shards_file, number, resume=resume and moves).map
    assignment = assigned(recipe, schema, folder, identity, notice)
    return replace(
        assignment,
        shards=tuple(without_idle_shards(recipe, assignment).addresses),
        generation=identity.next(),
        map=map.to_dict() if map.runs else {},
        resume=resume,
        trial=trial,
    )


def _aside(rank: int) -> Callable[[str], None]:
    return lambda text: print(f"[worker {rank}] {text}", file=sys.stderr, flush=True)
