"""A run whose workers `torchrun` has started: each calls `train`, on one machine or several.

Nobody watches over them but `torchrun`, which starts all again after an error if it is allowed to. Shards run
already, or the workers hold the rows themselves.
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
from satrap.errors import ConfigError, ExchangeError, SatrapError, error_of, error_values
from satrap.launch import kept_code
from satrap.launch.beginning import opened, prepared
from satrap.launch.build import mesh_of, wire_of
from satrap.launch.cluster import assigned
from satrap.launch.described import described_mesh
from satrap.launch.dry_run import dry_run
from satrap.launch.fit import fit
from satrap.launch.folder import RunFolder
from satrap.launch.identity import Identity
from satrap.launch.mailbox import MapLog
from satrap.launch.outcome import Outcome
from satrap.launch.resume import begun, complete, nothing_to_resume, stop_at_signals
from satrap.launch.shard_requests import obstacles
from satrap.launch.worker import Assignment, assignment_of, device_of, site_of
from satrap.schema import Schema
from satrap.torchrun import Torchrun
from satrap.train import Observer
from satrap.train.place import connected


def launched_by_torchrun(recipe: Recipe | None) -> Torchrun | None:
    """Return what `torchrun` has told this process; None: it has told nothing, or Ray starts the workers."""
    by_ray = recipe is not None and recipe.sections.cluster.launcher == "ray"
    return None if by_ray else Torchrun.from_environment()


def speaks(recipe: Recipe | None) -> bool:
    """Return whether this process tells the user how a run goes; of several workers, one does."""
    launched = launched_by_torchrun(recipe)
    return launched is None or launched.rank == 0


def has_begun(recipe: Recipe, output: str) -> bool | None:
    """Return whether the run of a recipe left a snapshot, see `begun`; what was left is removed by rank 0."""
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
) -> Outcome:
    """Train with the other processes that `torchrun` has started; all call this.

    Rank 0 opens the run folder, which all must see at the same place, and tells the others what it is about.
    Its `observers` and `notice` alone are called; other ranks write to standard error. Other arguments and
    errors are as for `satrap.launch.train`. If rank 0 cannot begin, the others raise `ExchangeError`.
    """
    if recipe is None:
        raise nothing_to_resume(f"there is no run in {output}")
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
            told = _told(recipe, output, resume, name, trial, notice)
            workers.post("run", json.dumps(told).encode())
        assignment, folder = _heard(workers.posted("run", readers=workers.size), launched.rank)
        recipe = kept_code.adopt(load(folder.recipe_file), folder.path)
        site = site_of(recipe, assignment, workers, launched.local_rank, launched.local_size)
        return fit(
            recipe,
            Schema.from_dict(assignment.schema),
            folder,
            site=site,
            observers=observers,
            notice=notice,
            started=watch,
            resume=assignment.resume,
        )


def _heard(data: bytes, rank: int) -> tuple[Assignment, RunFolder]:
    """Return the assignment of a rank by what rank 0 has told, and the run folder, which it must see."""
    told = json.loads(data)
    if "error" in told:
        raise (
            error_of(told["error"])
            if rank == 0
            else ExchangeError("worker 0 could not begin the run", fix="read its error")
        )
    assignment = replace(assignment_of(told), rank=rank)
    folder = RunFolder(Path(assignment.folder))
    if not folder.recipe_file.exists():
        raise ConfigError(
            f"worker {rank} on {socket.gethostname()} does not see the run folder",
            where=str(folder),
            why="all workers write their parts of snapshots there",
            fix="use a folder that all machines see at the same place: --output",
        )
    return assignment, folder


def _as_launched(recipe: Recipe, size: int) -> Recipe:
    """Return a recipe with as many workers as there are, if it can be trained by them."""
    cluster = recipe.sections.cluster
    for key, wrong, why, fix in (
        (
            "exchange",
            cluster.exchange == "local",
            f"torchrun has started {size} processes, and with the local exchange one trains alone",
            "set cluster.exchange to collective, or to servers with cluster.addresses",
        ),
        (
            "addresses",
            cluster.exchange == "servers" and not cluster.addresses,
            "nobody else starts shards",
            "start them with satrap shard, and set cluster.addresses",
        ),
        ("loaders", cluster.loaders > 0, "nobody starts loaders there", "remove the key"),
        (
            "embedding_workers",
            cluster.embedding_workers > 0,
            "nobody starts embedding workers there",
            "remove the key",
        ),
        (
            "workers",
            cluster.workers not in (1, size),
            f"torchrun has started {size} processes",
            "remove the key, or start as many",
        ),
    ):
        if wrong:
            where = recipe.source.where(("cluster", key))
            what = "is needed under" if key == "addresses" else "does not go with"
            raise ConfigError(f"cluster.{key} {what} torchrun", where=where, why=why, fix=fix)
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
    if said := described_mesh(recipe, schema):
        notice(said)
    dry_run(recipe, schema)
    identity, cluster = Identity.of(folder.identity_file), recipe.sections.cluster
    shards, moves = tuple(cluster.addresses), not obstacles(recipe)[0]
    map = MapLog.of(folder.shards_file, len(shards) or cluster.shards, resume=resume and moves).map
    return replace(
        assigned(recipe, schema, folder, identity, notice),
        shards=shards,
        generation=identity.next(),
        map=map.to_dict() if map.runs else {},
        resume=resume,
        trial=trial,
    )


def _aside(rank: int) -> Callable[[str], None]:
    return lambda text: print(f"[worker {rank}] {text}", file=sys.stderr, flush=True)
