"""Cluster plan from a model's demand and host types: hosts, speed and bottleneck, snapshots, time, price."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from satrap.errors import ConfigError, did_you_mean
from satrap.tools.plan.cluster.demand import BACKWARD, STATES_OF_DENSE, Demand
from satrap.tools.plan.cluster.machines import Catalog, Machine

FILLED = 0.85
"""Share of a shard host's memory for rows; the rest is left to messages, snapshots and the system."""
SHARD_SECONDS, WORKER_SECONDS = 0.55e-6, 0.55e-6
"""CPU seconds per unique id of dim 16, of all shards together and of the worker.

`benchmarks.capacity` measured both with full memory: two of three ids were new and evicted another id.
"""
UTILISATION = 0.3
"""Fraction of a GPU's peak speed that the network reaches; an assumption."""
WORKER_CORES = 1
"""Cores of a worker that process ids and rows."""
SNAPSHOT_RATE = 2e9
"""Write rate of a shard host to an object store, bytes/s; an assumption."""


def per_width(dim: int) -> float:
    """Return the work for a row of `dim` weights relative to a row of 16; see `plan.topology.assumed`."""
    return (11 + 0.7 * dim) / (11 + 0.7 * 16)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Hosts for a model, and their expected performance; made by `plan_cluster`.

    Args:
        demand: demand of the model.
        hosts: (host type, number) of each planned type.
        choices: (host type, number needed for the rows) of all types for shards, cheapest first.
        limits: resource -> samples/s of all workers at which it is used up.
        samples: number of samples to train; None: not given.
        origin: source of shapes and prices, as text.
    """

    demand: Demand
    hosts: tuple[tuple[Machine, int], ...]
    choices: tuple[tuple[Machine, int], ...]
    limits: Mapping[str, float]
    samples: float | None
    origin: str

    @property
    def room(self) -> float:
        """Bytes available for rows on the shard hosts."""
        return FILLED * sum(kind.bytes * count for kind, count in self.hosts if kind.role == "shards")

    @property
    def fits(self) -> bool:
        """Whether the rows fit."""
        return self.demand.bytes <= self.room

    @property
    def bottleneck(self) -> str:
        """The resource that limits the speed."""
        return min(self.limits, key=lambda name: self.limits[name])

    @property
    def samples_per_second(self) -> float:
        """Upper bound of the speed."""
        return self.limits[self.bottleneck]

    @property
    def price(self) -> float:
        """Price in $/h."""
        return sum(kind.price * count for kind, count in self.hosts)

    @property
    def snapshot_seconds(self) -> float:
        """Seconds of a full snapshot, with all shard hosts in parallel."""
        return self.demand.bytes / SNAPSHOT_RATE / _count(self.hosts, "shards")

    @property
    def hours(self) -> float | None:
        """Hours to train the samples."""
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
    """Choose hosts for a model, or evaluate the given hosts.

    Args:
        demand: demand of the model.
        catalog: the available host types.
        hosts: host type -> number. Without hosts for shards, the cheapest that hold the rows are chosen;
            without hosts for workers, one of the cheapest type in the same cloud. "cpu" hosts run embedding
            workers on all cores.
        budget: maximum $/h.
        samples: number of samples to train.

    Raises:
        ConfigError: an unknown host type, a network that does not fit on a GPU host, or a price above the
            budget. Rows that do not fit are not an error, see `ClusterPlan.fits`.
    """
    chosen: list[tuple[Machine, int]] = []
    for name, count in (hosts or {}).items():
        if name not in catalog.machines:
            raise ConfigError(
                f"machine {name!r} is unknown",
                where=catalog.origin,
                fix=f"{did_you_mean(name, catalog.machines)}use one of: {', '.join(catalog.machines)}",
            )
        chosen.append((catalog.machines[name], count))
    choices = [(kind, math.ceil(demand.bytes / FILLED / kind.bytes)) for kind in catalog.of("shards")]
    choices.sort(key=lambda one: one[0].price * one[1])
    if not _count(chosen, "shards"):
        if not choices:
            raise ConfigError(
                "no machine has the role shards", where=catalog.origin, fix='set role = "shards" for one'
            )
        chosen.insert(0, choices[0])
    if not _count(chosen, "workers"):
        cloud = chosen[0][0].name.partition("/")[0]
        kinds = sorted(
            catalog.of("workers"), key=lambda kind: (kind.name.partition("/")[0] != cloud, kind.price)
        )
        if not kinds:
            raise ConfigError(
                "no machine has the role workers", where=catalog.origin, fix='set role = "workers" for one'
            )
        chosen.append((kinds[0], 1))
    plan = ClusterPlan(
        demand, tuple(chosen), tuple(choices), _limits(demand, chosen), samples, catalog.origin
    )
    _check(plan, budget)
    return plan


def _count(hosts: object, role: str) -> int:
    return sum(count for kind, count in hosts if kind.role == role)  # type: ignore[attr-defined]


def _limits(demand: Demand, hosts: list[tuple[Machine, int]]) -> dict[str, float]:
    """Return resource -> samples/s at which it is used up."""
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
                f"the network and its optimizer need {dense / 2**30:,.0f} GiB, more than a {kind.name} has",
                why="each worker holds a full replica",
                fix="shard the network with dense.mesh, or use larger hosts",
            )
    if budget is not None and plan.price > budget:
        raise ConfigError(
            f"the hosts cost {plan.price:,.2f} $/h, more than the budget of {budget:,.2f}",
            where=", ".join(f"{count} x {kind.name}" for kind, count in plan.hosts),
            fix="use a shorter format (embedding.dtype), a smaller dim, fewer parameters, or an SSD tier",
        )
