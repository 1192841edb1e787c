"""From a model's demand and kinds of hosts to a plan: hosts, speed and its limit, snapshots, time, price."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from satrap.errors import ConfigError, did_you_mean
from satrap.plan.cluster.demand import BACKWARD, STATES_OF_DENSE, Demand
from satrap.plan.cluster.machines import Catalog, Machine

FILLED = 0.85
"""Share of a shard host's memory for rows; the rest is for messages, snapshots and the system."""
SHARD_SECONDS, WORKER_SECONDS = 0.55e-6, 0.55e-6
"""Processor seconds per distinct id of width 16, of the shards together and of the worker.

`benchmarks.capacity` measured both with memory full, so that two of three ids were new and evicted another.
"""
UTILISATION = 0.3
"""Share of a GPU's best speed that the network reaches; an assumption."""
WORKER_CORES = 1
"""Cores of a worker that handle ids and rows."""
SNAPSHOT_RATE = 2e9
"""Bytes/s that a shard host writes to an object store; an assumption."""


def per_width(dim: int) -> float:
    """Return the work of a row of `dim` weights as a multiple of one of 16; see `plan.topology.assumed`."""
    return (11 + 0.7 * dim) / (11 + 0.7 * 16)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Hosts for a model, and what to expect of them; made by `plan_cluster`.

    Args:
        demand: of the model.
        hosts: how many of which kind.
        choices: how many hosts of each kind would hold the rows, cheapest first.
        limits: what bounds the speed -> samples/s of all workers at that bound.
        samples: to be trained; None: not said.
        origin: of shapes and prices, in words.
    """

    demand: Demand
    hosts: tuple[tuple[Machine, int], ...]
    choices: tuple[tuple[Machine, int], ...]
    limits: Mapping[str, float]
    samples: float | None
    origin: str

    @property
    def room(self) -> float:
        """Bytes for rows on the hosts for shards."""
        return FILLED * sum(kind.bytes * count for kind, count in self.hosts if kind.role == "shards")

    @property
    def fits(self) -> bool:
        """Whether the rows fit."""
        return self.demand.bytes <= self.room

    @property
    def bottleneck(self) -> str:
        """What bounds the speed."""
        return min(self.limits, key=lambda name: self.limits[name])

    @property
    def samples_per_second(self) -> float:
        """Expected speed, at best."""
        return self.limits[self.bottleneck]

    @property
    def price(self) -> float:
        """$/h."""
        return sum(kind.price * count for kind, count in self.hosts)

    @property
    def snapshot_seconds(self) -> float:
        """Seconds of a whole snapshot, all hosts for shards at once."""
        return self.demand.bytes / SNAPSHOT_RATE / _count(self.hosts, "shards")

    @property
    def hours(self) -> float | None:
        """Hours for the samples."""
        return None if self.samples is None else self.samples / self.samples_per_second / 3600

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data: bytes, seconds, $ and counts."""
        parts = {
            part.name: {
                "rows": part.rows,
                "dim": part.dim,
                "bytes": {"weights": part.weights, "state": part.state, "index": part.index},
            }
            for part in self.demand.parts
        }
        return {
            "parameters": self.demand.parameters,
            "tables": parts,
            "bytes": self.demand.bytes,
            "room": self.room,
            "fits": self.fits,
            "hosts": {kind.name: count for kind, count in self.hosts},
            "choices": {kind.name: count for kind, count in self.choices},
            "bytes_per_sample": self.demand.wire,
            "distinct_ids_per_sample": sum(self.demand.ids),
            "flop_per_sample": BACKWARD * self.demand.forward_flop,
            "limits": dict(self.limits),
            "bottleneck": self.bottleneck,
            "samples_per_second": self.samples_per_second,
            "snapshot_seconds": self.snapshot_seconds,
            "price_per_hour": self.price,
            "hours": self.hours,
            "origin": self.origin,
        }


def plan_cluster(
    demand: Demand,
    catalog: Catalog,
    *,
    hosts: Mapping[str, int] | None = None,
    budget: float | None = None,
    samples: float | None = None,
) -> ClusterPlan:
    """Choose hosts for a model, or judge those that are given.

    Args:
        demand: of the model.
        catalog: the kinds of hosts there are.
        hosts: kind -> how many. Without one for shards, the cheapest that hold the rows are taken; without
            one for workers, one host of the cheapest kind of the same cloud. Those for "cpu" have embedding
            workers on all cores.
        budget: most $/h.
        samples: how many are to be trained.

    Raises:
        ConfigError: an unknown kind of host, the network does not fit on a GPU host, or the hosts cost more
            than the budget. Rows that do not fit are no error here, see `ClusterPlan.fits`.
    """
    chosen: list[tuple[Machine, int]] = []
    for name, count in (hosts or {}).items():
        if name not in catalog.machines:
            raise ConfigError(
                f"there is no machine {name!r}",
                where=catalog.origin,
                fix=f"{did_you_mean(name, catalog.machines)}there are: {', '.join(catalog.machines)}",
            )
        chosen.append((catalog.machines[name], count))
    choices = [(kind, math.ceil(demand.bytes / FILLED / kind.bytes)) for kind in catalog.of("shards")]
    choices.sort(key=lambda one: one[0].price * one[1])
    if not _count(chosen, "shards"):
        if not choices:
            raise ConfigError(
                "no machine is for shards", where=catalog.origin, fix='give one role = "shards"'
            )
        chosen.insert(0, choices[0])
    if not _count(chosen, "workers"):
        cloud = chosen[0][0].name.partition("/")[0]
        kinds = sorted(
            catalog.of("workers"), key=lambda kind: (kind.name.partition("/")[0] != cloud, kind.price)
        )
        if not kinds:
            raise ConfigError(
                "no machine is for workers", where=catalog.origin, fix='give one role = "workers"'
            )
        chosen.append((kinds[0], 1))
    found = ClusterPlan(
        demand, tuple(chosen), tuple(choices), _limits(demand, chosen), samples, catalog.origin
    )
    _check(found, budget)
    return found


def _count(hosts: object, role: str) -> int:
    return sum(count for kind, count in hosts if kind.role == role)  # type: ignore[attr-defined]


def _limits(demand: Demand, hosts: list[tuple[Machine, int]]) -> dict[str, float]:
    """Return samples/s at which each resource is used up."""
    shards = [(kind, count) for kind, count in hosts if kind.role == "shards"]
    workers = [(kind, count) for kind, count in hosts if kind.role == "workers"]
    helpers = [(kind, count) for kind, count in hosts if kind.role == "cpu"]
    per_sample = demand.costs([per_width(part.dim) for part in demand.parts])
    devices = sum(max(kind.gpus, 1) * count for kind, count in workers)
    limits = {
        "processors of the shards": _sum(shards, "cores") / (per_sample * SHARD_SECONDS),
        "network of the shards": _sum(shards, "bytes_per_second") / demand.wire,
    }
    if helpers:
        cores = _sum(helpers, "cores")
        limits["ids and rows in the embedding workers"] = cores / (per_sample * WORKER_SECONDS)
        limits["network of the embedding workers"] = _sum(helpers, "bytes_per_second") / demand.wire
        limits["network of the workers"] = _sum(workers, "bytes_per_second") / demand.vectors
    else:
        limits["ids and rows in the workers"] = WORKER_CORES * devices / (per_sample * WORKER_SECONDS)
        limits["network of the workers"] = _sum(workers, "bytes_per_second") / demand.wire
    flops = sum(kind.gpus * kind.tflops * 1e12 * count for kind, count in workers)
    if flops and demand.forward_flop:
        limits["the network on the GPUs"] = UTILISATION * flops / (BACKWARD * demand.forward_flop)
    return limits


def _sum(hosts: list[tuple[Machine, int]], name: str) -> float:
    return float(sum(getattr(kind, name) * count for kind, count in hosts))


def _check(plan: ClusterPlan, budget: float | None) -> None:
    for kind, _ in plan.hosts:
        dense = 4.0 * STATES_OF_DENSE * plan.demand.dense
        if kind.role == "workers" and dense > FILLED * kind.bytes:
            raise ConfigError(
                f"the network needs {dense / 2**30:,.0f} GiB with its optimizer, more than a {kind.name} has",
                why="each worker has a whole copy",
                fix="spread it with dense.mesh, or use larger hosts",
            )
    if budget is not None and plan.price > budget:
        raise ConfigError(
            f"the hosts cost {plan.price:,.2f} $/h, more than {budget:,.2f}",
            where=", ".join(f"{count} x {kind.name}" for kind, count in plan.hosts),
            fix="use a shorter format (embedding.dtype), a smaller dim, fewer parameters, or a tier on disks",
        )
