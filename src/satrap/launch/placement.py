"""Which workers hold the rows of a recipe's tables: as the recipe says, or as a plan chooses."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import torch

from satrap.batch import Batch
from satrap.checkpoint import Series
from satrap.checkpoint.chain import open_chain
from satrap.checkpoint.series import newest
from satrap.config import Recipe
from satrap.config.checks.tables import kept, memory_of
from satrap.config.keys.sections import Sections
from satrap.errors import ConfigError, DataError
from satrap.exchange.collective import Placement
from satrap.exchange.wire.formats import CODES
from satrap.launch.build import pools, store_of, tables_for, wire_of
from satrap.launch.datasets import open_part
from satrap.launch.folder.run_folder import RunFolder, write_whole
from satrap.launch.network import construct_model
from satrap.plan import Plan, Topology, WorkerRates, Workload, measure, place, workload
from satrap.plan.replicas import SAMPLES, ReplicaChoice, choose, described
from satrap.plan.topology import BANDWIDTH, LATENCY, assumed
from satrap.runtime import numba_cache
from satrap.runtime.formatting import size
from satrap.runtime.machine_limits import machine_bytes
from satrap.runtime.user_code import blaming
from satrap.schema import Schema, Table
from satrap.settings.store import TableSettings

BATCHES = 20
"""Number of batches to read, over all workers."""
WITHOUT_NUMBERS = "the network cannot run on fake tensors"


@dataclass(frozen=True, slots=True)
class Facts:
    """User settings about rows and workers; None: from the recipe, or assumed.

    Args:
        workers: number of workers; default the recipe's, with each tensor group counted once.
        batches: batches to read over all workers, default 20; at least one step is counted.
        run: run folder or checkpoint with the number of rows of each table.
        rows: table -> number of rows; overrides `run`.
        memory: bytes for rows per worker; default its part of `embedding.memory` or of the machine's memory.
        bandwidth: bytes/s between workers.
        latency: seconds of a nearly empty all-to-all.
        lookups: rows/s that a worker looks up.
        updates: rows/s that a worker updates.
        measure: measure missing speeds on this machine, default False.
    """

    workers: int | None = None
    batches: int = BATCHES
    run: str | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    memory: int | None = None
    bandwidth: float | None = None
    latency: float | None = None
    lookups: float | None = None
    updates: float | None = None
    measure: bool = False


def plan(recipe: Recipe, facts: Facts = Facts(), *, notice: Callable[[str], None] = lambda _: None) -> Plan:
    """Return the best placements for a recipe's tables; reads some batches of its training rows.

    Tables in `cluster.placements` keep their placement.

    Args:
        recipe: the recipe to train.
        facts: other settings.
        notice: called with a line of text for the user.

    Raises:
        ConfigError: the rows do not fit, or the recipe has no tables.
        DataError: too few training rows for one step.
        CheckpointError: `facts.run` has no checkpoint.
    """
    schema, workers = recipe.schema(), facts.workers or recipe.sections.shares
    tables, _ = tables_and_network(recipe, schema, notice, torch.device("meta"))
    load, topology = (
        measured_load(recipe, schema, tables, workers, facts),
        _topology(recipe, tables, workers, facts),
    )
    bounds = store_of(recipe).bounds(tables)
    spread = [table.name for table in tables if table.memory is not None or table.name in bounds]
    return place(
        load if topology.evicts else _within_budgets(load, tables, bounds, topology),
        topology,
        pooled=pools(recipe),
        fixed=dict.fromkeys(spread, "row_wise") | recipe.sections.cluster.placements,
    )


def placement_of(recipe: Recipe, folder: RunFolder, notice: Callable[[str], None]) -> Placement:
    """Return the placement of each table's rows: the recipe's, the planned one, or replicas of small tables.

    For `cluster.placement: auto` it is planned. With shard servers and rows that may be stale, and without
    `cluster.placement`, `choose` decides which tables the workers hold. Tables in `cluster.placements` keep
    their placement. Speeds are assumed, so that equal runs have equal plans. A run that resumes with the same
    number of workers keeps its placement, so that its result does not depend on the interruption. Otherwise
    the numbers of rows come from the newest snapshot.
    """
    sections, cluster = recipe.sections, recipe.sections.cluster
    if not recipe.schema().categorical:
        return Placement()
    if cluster.placement != "auto" and not may_replicate(sections, sections.shares):
        return Placement(cluster.placement or "row_wise", cluster.placements)
    file = folder.placement_file
    saved = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    key = {"exchange": cluster.exchange, "workers": sections.shares, "placements": cluster.placements}
    if {"exchange": "collective"} | saved == saved | key:
        return Placement("row_wise", saved["tables"], saved["owners"])
    snapshots = folder.snapshots(recipe)
    facts = Facts(run=None if Series(snapshots).latest() is None else snapshots)
    owners: dict[str, int] = {}
    if cluster.placement == "auto":
        planned = plan(recipe, facts)
        chosen, owners = dict(planned.placements), dict(planned.cost.owners)
        names = {
            kind: [t for t, placement in chosen.items() if placement == kind]
            for kind in sorted(set(chosen.values()))
        }
        summary = "; ".join(f"{kind}: {', '.join(tables)}" for kind, tables in names.items())
    else:
        try:
            choices = replicas(recipe, facts)
        except DataError as error:  # too few rows to count ids
            notice(f"shards hold all tables: {error.what}")
            return Placement("row_wise", cluster.placements)
        chosen = {name: "replicated" if choice.replicated else "row_wise" for name, choice in choices.items()}
        summary = described(choices)
    notice(f"placement of tables (for details: satrap plan): {summary}")
    write_whole(file, json.dumps(key | {"tables": chosen, "owners": owners}, indent=2) + "\n")
    return Placement("row_wise", chosen, owners)


def may_replicate(sections: Sections, workers: int) -> bool:
    """Return whether small tables are replicated by default: workers share shards, and rows may be stale."""
    cluster, mesh = sections.cluster, sections.dense.mesh
    return (
        (cluster.exchange, sections.training.mode, cluster.placement) == ("servers", "hybrid", None)
        and workers > 1
        and not cluster.embedding_workers
        and sections.embedding.tier is None
        and mesh.tensor * mesh.pipeline == 1
    )


def replicas(recipe: Recipe, facts: Facts, load: Workload | None = None) -> dict[str, ReplicaChoice]:
    """Return table -> whether every worker holds it by default; see `choose`.

    Args:
        recipe: a recipe that `may_replicate`.
        facts: number of workers, and numbers of rows.
        load: lookups of the recipe's batches; default: measured.

    Raises:
        DataError: too few training rows for one step.
    """
    schema, workers = recipe.schema(), facts.workers or recipe.sections.shares
    if load is None:
        tables, _ = tables_and_network(recipe, schema, lambda _: None, torch.device("meta"))
        load = measured_load(recipe, schema, tables, workers, facts)
    fixed = {}
    for name, limits in kept(recipe.sections).items():
        settings = recipe.sections.tables.get(name, TableSettings())
        placement = recipe.sections.cluster.placements.get(name)
        if placement is not None:
            fixed[name] = ReplicaChoice(placement == "replicated", "cluster.placements")
        elif limits.decided_by or limits.memory is not None:
            fixed[name] = ReplicaChoice(False, "its set of rows is limited")
        elif settings.frozen or settings.rows is not None:
            fixed[name] = ReplicaChoice(False, "its rows come from a file")
    samples: int | None = load.steps * load.batch_size * workers
    if recipe.sections.data.stream is not None:
        samples = None  # a log continues after its first events
    elif load.steps >= facts.batches // workers:
        train = open_part(recipe, schema, "train")
        assert train is not None
        samples = train.num_rows()
    return choose(load, workers, SAMPLES if samples is None else samples, fixed)


def check_tables(schema: Schema) -> None:
    """Raise `ConfigError` if there are no tables to plan."""
    if not schema.categorical:
        raise ConfigError(
            "the recipe has no categorical features, so there are no tables to plan",
            why="a plan computes the placement and cost of rows in tables",
            fix="train without a plan, in one process or with cluster.exchange: collective",
        )


def tables_and_network(
    recipe: Recipe, schema: Schema, notice: Callable[[str], None], mode: AbstractContextManager[object]
) -> tuple[list[Table], torch.nn.Module]:
    """Return the tables, and the network; `mode` makes its tensors, without memory."""
    check_tables(schema)
    numba_cache.announce(lambda: notice(numba_cache.COMPILING))
    with mode, blaming(WITHOUT_NUMBERS, ConfigError):
        model = construct_model(recipe, schema)
        return tables_for(recipe, schema, model), model


def measured_load(
    recipe: Recipe, schema: Schema, tables: Sequence[Table], workers: int, facts: Facts
) -> Workload:
    """Return the lookups that batches of the training data need, counted, and the tables' rows.

    Raises:
        DataError: too few training rows for one step.
        CheckpointError: `facts.run` has no checkpoint.
    """
    wire = wire_of(recipe)
    ids = Schema((), schema.categorical, salt=schema.salt)  # only ids are read
    load = workload.measure(
        ids,
        tables,
        training_batches(recipe, ids, max(workers, facts.batches // workers * workers), facts.workers),
        workers,
        forward=CODES[wire.forward],
        backward=CODES[wire.backward],
    )
    saved = {} if facts.run is None else _rows(newest(facts.run))
    names = {table.name for table in tables}
    load = load.with_rows({name: count for name, count in saved.items() if name in names and count}, "run")
    return load.with_rows(facts.rows, "given")


def _within_budgets(
    load: Workload, tables: Sequence[Table], bounds: Mapping[str, str], topology: Topology
) -> Workload:
    """Return the load with the rows of evicting tables capped by their memory budget or share.

    Raises ConfigError for a table without eviction whose rows exceed its own budget.
    """
    budgets = {table.name: table.memory for table in tables if table.memory is not None}
    rest = max(0, int(topology.memory * topology.workers) - sum(budgets.values()))
    each = sum(table.row_bytes for table in load.tables if table.name not in budgets)
    tables_within = []
    for table in load.tables:
        room = budgets[table.name] // table.row_bytes if table.name in budgets else rest // each
        if bounds.get(table.name) == "eviction":
            table = replace(table, rows=min(table.rows, room))
        elif table.name in budgets and table.rows > room:
            raise ConfigError(
                f"the {table.rows:,} rows of table {table.name!r} need {size(table.rows * table.row_bytes)}, "
                f"but tables.{table.name}.memory is {size(budgets[table.name])}",
                why="the table evicts no rows, so a row that does not fit ends the run",
                fix=f"raise tables.{table.name}.memory, or set tables.{table.name}.eviction",
            )
        tables_within.append(table)
    return replace(load, tables=tuple(tables_within))


def training_batches(
    recipe: Recipe, schema: Schema, count: int, workers: int | None
) -> itertools.islice[Batch]:
    """Return the first batches of the training data; `workers`: their number, if not the recipe's."""
    train = open_part(recipe, schema, "train")
    assert train is not None
    if workers is not None and recipe.sections.data.global_batch:  # another number than the recipe's
        train = train.with_options(batch_size=max(1, recipe.sections.data.batch_size // workers))
    return itertools.islice(train.batches(), count)


def _rows(url: str) -> dict[str, int]:
    """Return the number of rows of each table in a checkpoint; with deltas, all ids are read."""
    chain = open_chain(url)
    if len(chain.members) == 1:
        return chain.members[0][1].rows()
    return {table: sum(len(chunk.ids) for _, chunk in chain.chunks(table)) for table in chain.tables}


def _topology(recipe: Recipe, tables: Sequence[Table], workers: int, facts: Facts) -> Topology:
    if facts.memory is not None:
        memory, origin = facts.memory, "as given"
    elif (whole := memory_of(recipe.sections)) is not None:
        memory, origin = whole // workers, "its part of embedding.memory"
    else:
        memory, origin = machine_bytes() // workers, "its part of this machine"
    bandwidth, latency = BANDWIDTH, LATENCY
    if facts.measure and workers > 1:
        bandwidth, latency = measure.network(workers)
    rates = measure.rates(tables) if facts.measure else {t.dim: assumed(t.dim) for t in tables}
    speeds = [facts.bandwidth, facts.latency, facts.lookups, facts.updates]
    bounds = store_of(recipe).bounds(tables)
    kinds = {bounds.get(table.name, "") for table in tables}
    return Topology(
        workers,
        memory,
        facts.bandwidth or bandwidth,
        facts.latency or latency,
        {d: WorkerRates(facts.lookups or r.lookups, facts.updates or r.updates) for d, r in rates.items()},
        bounded_by="" if "" in kinds else max(kinds) if len(kinds) == 1 else "admission",
        memory_from=origin,
        speeds_from=_origin(sum(speed is not None for speed in speeds), facts.measure),
    )


def _origin(given: int, measured: bool) -> str:
    """Return the origin of the four speeds, as text."""
    others = "measured on this machine" if measured else "assumed"
    return {0: others, 4: "as given"}.get(given, f"partly as given, else {others}")
