"""Text report of a cluster plan, with its arithmetic and every constant."""

from __future__ import annotations

from satrap.plan.result import columns
from satrap.runtime.formatting import size
from satrap.store.memory.directory import OVERHEAD
from satrap.tools.plan.cluster.demand import BACKWARD
from satrap.tools.plan.cluster.plan import (
    FILLED,
    SHARD_SECONDS,
    SNAPSHOT_RATE,
    UTILISATION,
    WORKER_SECONDS,
    ClusterPlan,
)


def report(plan: ClusterPlan) -> str:
    """Return the plan as text."""
    d = plan.demand
    lines = [f"{d.parameters:.4g} parameters in {len(d.parts)} tables", "", *_tables(plan), ""]
    lines += [*_hosts(plan), ""]
    lines += [*_speed(plan), ""]
    return "\n".join([*lines, *(f"  {note}" for note in _notes(plan))])


def _tables(plan: ClusterPlan) -> list[str]:
    rows = [["table", "dim", "rows", "weights", "state", "index", "total"]]
    shown = sorted(plan.demand.parts, key=lambda part: -part.bytes)
    for part in shown[:10]:
        cells = [size(amount) for amount in (part.weights, part.state, part.index, part.bytes)]
        rows.append([part.name, str(part.dim), f"{part.rows:,}", *cells])
    parts = plan.demand.parts
    sums = [size(sum(getattr(p, name) for p in parts)) for name in ("weights", "state", "index", "bytes")]
    rows.append([f"all {len(parts)}", "", f"{sum(p.rows for p in parts):,}", *sums])
    return columns(rows)


def _hosts(plan: ClusterPlan) -> list[str]:
    rows = [["hosts for the rows", "GiB each", "number", "$/h"]]
    for kind, count in plan.choices:
        rows.append([kind.name, f"{kind.memory:,.0f}", f"{count:,}", f"{count * kind.price:,.0f}"])
    planned = " + ".join(f"{count} x {kind.name}" for kind, count in plan.hosts)
    lines = [*columns(rows), "", f"planned: {planned}, {plan.price:,.0f} $/h"]
    if plan.fits:
        return [*lines, f"the rows take {size(plan.demand.bytes)} of {size(plan.room)}"]
    short, needed = plan.demand.bytes - plan.room, plan.demand.bytes / plan.demand.parameters
    most = plan.room / plan.demand.parameters
    return [
        *lines,
        f"DOES NOT FIT: the rows take {size(plan.demand.bytes)}, {size(short)} more than {size(plan.room)}",
        f"what to do: reduce {needed:.2f} bytes per parameter to {most:.2f} (embedding.dtype: bfloat16, "
        "row-wise state, a larger dim), use more hosts, or use embedding.tier on their disks",
    ]


def _speed(plan: ClusterPlan) -> list[str]:
    rows = [["most samples/s, limited by", ""]]
    for name, speed in sorted(plan.limits.items(), key=lambda one: one[1]):
        rows.append([name, f"{speed:,.0f}"])
    lines = columns(rows)
    minutes = plan.snapshot_seconds / 60
    lines += ["", f"a full snapshot: {size(plan.demand.bytes)}, {minutes:,.0f} min"]
    if plan.hours is not None:
        cost = plan.hours * plan.price
        lines.append(f"{plan.samples:.4g} samples: {plan.hours:,.1f} h, {cost:,.0f} $")
    return lines


def _notes(plan: ClusterPlan) -> list[str]:
    d = plan.demand
    full = [f"{part.name} ({part.rows})" for part in d.parts if part.full]
    return [
        *([f"tables at their maximum number of rows: {', '.join(full)}"] if full else []),
        f"rows x (weights + state + {OVERHEAD} bytes of index); rows fill {FILLED:.0%} of a host's memory",
        f"unique ids per sample: {sum(d.ids):.2f}, in batches of {d.batch_size:,}; "
        f"{d.wire:,.0f} bytes per sample to and from the shards; "
        f"{d.vectors:,.0f} between a worker and its embedding worker, if used",
        f"CPU time per unique id of dim 16: {1e6 * SHARD_SECONDS:.2f} us in the shards, "
        f"{1e6 * WORKER_SECONDS:.2f} us in a worker, measured by benchmarks.capacity",
        f"network: {BACKWARD} x {d.forward_flop / 1e6:,.2f} MFLOP per sample at {UTILISATION:.0%} of a GPU's "
        f"peak, assumed; snapshots at {SNAPSHOT_RATE / 1e9:.0f} GB/s per host, assumed",
        "the speed is an upper bound: loaders, evaluation, stragglers and failures are not included",
        f"machines: {plan.origin}",
    ]
