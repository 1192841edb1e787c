"""Choice of a placement for each table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product

from satrap.errors import ConfigError
from satrap.exchange.collective.placement import PLACEMENTS
from satrap.plan.cost import Cost, PlacementCosts
from satrap.plan.result import Plan
from satrap.plan.topology import Topology
from satrap.plan.workload import Workload
from satrap.runtime.formatting import size

EXHAUSTIVE = 3**5
"""Most combinations of placements for exhaustive search; beyond it, tables are changed one at a time."""

Placements = dict[str, str]


def place(
    workload: Workload, topology: Topology, *, pooled: bool = False, fixed: Mapping[str, str] | None = None
) -> Plan:
    """Return the placements with the fastest step that fit in memory.

    With few tables all combinations are tried. With more, a search starts from each uniform placement and
    changes one table at a time while that helps. Either way the result is never slower than a uniform
    placement that fits. Equal arguments give equal plans; ties go to the first in the order of `PLACEMENTS`.


    Args:
        workload: the tables and their load.
        topology: the workers.
        pooled: see `PlacementCosts`, default False.
        fixed: table -> placement that must not change, default none.

    Raises:
        ConfigError: the rows do not fit, even if all tables that are not fixed are spread over all workers.
    """
    costs, names = (
        PlacementCosts(workload, topology, pooled=pooled),
        [table.name for table in workload.tables],
    )
    pinned = {name: fixed[name] for name in names if fixed and name in fixed}
    free = [name for name in names if name not in pinned]
    spread = dict.fromkeys(names, PLACEMENTS[0])
    if not topology.evicts:
        if not _fits(costs.of(spread), topology):
            raise no_room(workload, topology)
        if not _fits(costs.of(spread | pinned), topology):
            raise _no_room_as_placed(costs.of(spread | pinned), topology, pinned)
    if topology.workers == 1 or topology.bounded_by:
        return _plan(costs, spread)
    if len(PLACEMENTS) ** len(free) <= EXHAUSTIVE:
        choices = product(*[[(n, p) for p in PLACEMENTS] for n in free])
        candidates: Iterable[Placements] = (spread | pinned | dict(choice) for choice in choices)
    else:
        starts = (dict.fromkeys(names, placement) | pinned for placement in PLACEMENTS)
        candidates = (_improved(costs, start, free) for start in starts)
    return _plan(costs, _fastest(costs, candidates))


def _fits(cost: Cost, topology: Topology) -> bool:
    return cost.most_memory <= topology.memory


def _fastest(costs: PlacementCosts, candidates: Iterable[Placements]) -> Placements:
    fitting = ((costs.of(candidate), candidate) for candidate in candidates)
    return min(
        (c.seconds, i, candidate) for i, (c, candidate) in enumerate(fitting) if _fits(c, costs.topology)
    )[2]


def _improved(costs: PlacementCosts, placements: Placements, free: Iterable[str]) -> Placements:
    """Change one free table at a time until no change helps; missing memory counts before time."""
    best = _rank(costs, placements)
    while True:
        before = best
        for name, placement in product(free, PLACEMENTS):
            other = placements | {name: placement}
            if (rank := _rank(costs, other)) < best:
                best, placements = rank, other
        if best == before:
            return placements


def _rank(costs: PlacementCosts, placements: Placements) -> tuple[float, float]:
    """Return (missing bytes, seconds): less is better."""
    cost = costs.of(placements)
    return max(0.0, cost.most_memory - costs.topology.memory), cost.seconds


def _plan(costs: PlacementCosts, placements: Placements) -> Plan:
    workload, topology = costs.workload, costs.topology
    free = topology.workers > 1 and not topology.bounded_by
    single = {
        t.name: PlacementCosts(replace(workload, tables=(t,)), topology, pooled=costs.pooled)
        for t in workload.tables
    }
    return Plan(
        workload=workload,
        topology=topology,
        placements=placements,
        cost=costs.of(placements),
        alone={name: table_costs.of({name: placements[name]}) for name, table_costs in single.items()},
        uniform={placement: costs.uniform(placement) for placement in PLACEMENTS} if free else {},
        instead={
            name: {p: costs.of(placements | {name: p}) for p in PLACEMENTS if p != placements[name]}
            for name in (placements if free else ())
        },
    )


def no_room(workload: Workload, topology: Topology) -> ConfigError:
    """Return the error for rows that do not fit even if all tables are spread over all workers."""
    workers, memory = topology.workers, topology.memory
    needed, total = _spread_bytes(workload, workers), _spread_bytes(workload, 1)
    largest = max(workload.tables, key=lambda table: table.rows * table.row_bytes)
    room = memory - sum(table.row_bytes for table in workload.tables)  # for rows in excess of an even split
    enough = math.ceil(total / room) if room > 0 else 0
    while enough > workers + 1 and _spread_bytes(workload, enough - 1) <= memory:
        enough -= 1
    more = enough - workers
    ways = [f"{more} more worker{'s' if more > 1 else ''} with as much memory each"] if more > 0 else []
    half = [replace(t, weight_bytes=min(t.weight_bytes, (t.dim + 1) // 2 * 4)) for t in workload.tables]
    if _spread_bytes(replace(workload, tables=tuple(half)), workers) <= memory:
        ways.append("embedding.dtype bfloat16")
    return ConfigError(
        f"the rows need {size(needed)} at each worker, which has {size(memory)}: {size(needed - memory)} too "
        "little",
        where=f"{workers} worker{'s' if workers > 1 else ''}; memory: {topology.memory_from}; largest table "
        f"{largest.name!r} with {largest.rows:,} rows",
        why="evenly spread rows without replicas need the least memory; a row that does not fit ends the run",
        fix=f"use {', or '.join([*ways, 'more memory'])}; or set embedding.eviction",
    )


def _no_room_as_placed(cost: Cost, topology: Topology, fixed: Placements) -> ConfigError:
    return ConfigError(
        f"the rows need {size(cost.most_memory)} at one worker, but it has {size(topology.memory)}",
        where=f"with {', '.join(f'{name}: {placement}' for name, placement in fixed.items())}",
        why="all other tables are already spread over the workers; a row that does not fit ends the run",
        fix="let the planner also place these tables",
    )


def _spread_bytes(workload: Workload, workers: int) -> int:
    return sum(math.ceil(table.rows / workers) * table.row_bytes for table in workload.tables)
