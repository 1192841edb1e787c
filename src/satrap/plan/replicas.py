"""Tables of shard servers that every worker holds as well, so that their rows are never stale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from satrap.exchange.kernels import row_bytes
from satrap.plan.cost import ID_BYTES
from satrap.plan.result import columns
from satrap.plan.workload import TableLoad, Workload
from satrap.runtime.formatting import size

MOST_IDS = 10_000
"""Most ids of such a table. An id of a larger one is in few batches, so that staleness costs it little."""
MOST_BYTES = 1 << 20
"""Most bytes that a worker sends in a step for all such tables: 0.8 ms at 10 Gbit/s."""
SAMPLES = 1_000_000
"""Assumed number of training samples, if it is unknown before reading them all."""


@dataclass(frozen=True, slots=True)
class ReplicaChoice:
    """Whether every worker holds a table, and why, as text."""

    replicated: bool
    why: str


def choose(
    workload: Workload,
    workers: int,
    samples: int,
    fixed: Mapping[str, ReplicaChoice] | None = None,
) -> dict[str, ReplicaChoice]:
    """Return table -> whether every worker holds it, in the order of the tables.

    Staleness costs an id the more, the more of the batches it is in. These are the ids of small tables. Their
    replicas are updated by all workers together in each step: each sends its gradients to all others, so this
    does not suit many workers with large batches. The smallest tables come first until `MOST_BYTES` are used.

    Args:
        workload: the tables and the counted steps.
        workers: number of workers, >= 2.
        samples: number of training samples.
        fixed: choices that must not change, default none.
    """
    chosen, sent = dict(fixed or {}), 0.0
    ids = {table.name: _ids(table, workload, workers, samples) for table in workload.tables}
    for table in sorted(workload.tables, key=lambda table: ids[table.name]):
        if table.name in chosen:
            continue
        count, each = ids[table.name], ID_BYTES + row_bytes(workload.backward, table.dim)
        here = (workers - 1) * min(table.distinct, count) * each
        if small := count <= MOST_IDS and sent + here <= MOST_BYTES:
            sent, why = sent + here, f"few ids: about {count:,}"
        elif count > MOST_IDS:
            why = f"many ids: about {count:,}, more than {MOST_IDS:,}"
        else:
            why = f"many bytes: each of {workers} workers would send more than {size(MOST_BYTES)} a step"
        chosen[table.name] = ReplicaChoice(small, why)
    return {table.name: chosen[table.name] for table in workload.tables}


def _ids(table: TableLoad, workload: Workload, workers: int, samples: int) -> int:
    """Return the number of ids of all samples, if it grows on as in the second half of the counted steps.

    It grows as a power of the number of samples (H. S. Heaps, "Information Retrieval", 1978): 0 without new
    ids, 1 if samples are sorted by id.
    """
    counted, before = workload.steps, table.rows - table.late
    half, times = counted // 2, samples / (counted * workload.batch_size * workers)
    power = math.log(table.rows / before, counted / half) if half and before else 1.0
    ids = math.ceil(table.rows * math.pow(max(1.0, times), min(1.0, power if table.late else 0.0)))
    return ids if table.most is None else min(ids, table.most)


def described(choices: Mapping[str, ReplicaChoice]) -> str:
    """Return which tables the workers hold, and why shards hold the others, on one line."""
    held = [name for name, choice in choices.items() if choice.replicated]
    others = _by_reason((name, choice.why) for name, choice in choices.items() if not choice.replicated)
    parts = [f"every worker holds {', '.join(held)}, which are never stale"] if held else []
    parts += [f"shards hold {', '.join(names)} ({why})" for why, names in others.items()]
    return "; ".join(parts if others else [*parts, "no shard is needed"])


def report(choices: Mapping[str, ReplicaChoice]) -> str:
    """Return the choices as text for a terminal, one line for each table."""
    held = {True: "every worker", False: "shards"}
    body = [[name, held[choice.replicated], choice.why] for name, choice in choices.items()]
    head = "with shard servers (cluster.exchange: servers), in mode hybrid:"
    return "\n".join([head, *columns([["table", "held by", "why"], *body])])


def _by_reason(tables: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name, why in tables:
        reasons.setdefault(why, []).append(name)
    return reasons
