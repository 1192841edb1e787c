"""Alert rules for Prometheus: what an operator of a run must act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule.

    Args:
        name: of the alert.
        expr: PromQL; each series that it yields is an alert.
        minutes: how long it must hold.
        severity: critical: training has stopped, or will; warning: it goes on, but worse than it could.
        summary: what is wrong, with the series' labels.
        action: what to do.
    """

    name: str
    expr: str
    minutes: int
    severity: Literal["critical", "warning"]
    summary: str
    action: str


ROLES = 'role=~"worker|shard|loader|embedding-worker"'
"""Matches the processes of runs, in the list of targets of a run folder."""

_WHERE = "{{ $labels.instance }} of run {{ $labels.run }}"

ALERTS = (
    Alert(
        "SatrapProcessDown",
        f"up{{{ROLES}}} == 0",
        2,
        "critical",
        f"{_WHERE} does not answer",
        "Look at the last lines of satrap train. It restarts what is killed, cluster.restarts times; "
        "if satrap train itself was killed, go on with --resume.",
    ),
    Alert(
        "SatrapNoSteps",
        "rate(satrap_worker_steps_total[5m]) == 0",
        15,
        "critical",
        f"{_WHERE} takes no steps",
        "In an evaluation, and while a snapshot is loaded, this is normal. Otherwise look for processes that "
        "are down, at the shards' /ready, and at the place of the snapshots.",
    ),
    Alert(
        "SatrapRestarts",
        f"changes(process_start_time_seconds{{{ROLES}}}[30m]) >= 2",
        0,
        "critical",
        f"{_WHERE} was started again {{{{ $value }}}} times in 30 minutes",
        "The run ends when cluster.restarts are used up. Most often memory is short: compare embedding.memory"
        " with the machine, and look for the kernel's messages about killed processes.",
    ),
    Alert(
        "SatrapRefusedSteps",
        "increase(satrap_worker_refused_steps_total[10m]) > 0",
        0,
        "warning",
        f"{_WHERE} refused steps: loss or gradients were not finite",
        "Lower the learning rates, set training.clip_norm, or look for extreme values in the data.",
    ),
    Alert(
        "SatrapRefusedRequests",
        "increase(satrap_shard_refused_requests_total[10m]) > 0",
        0,
        "warning",
        f"{_WHERE} refused requests",
        "Its log says why: no memory left, another run, or a former generation of workers.",
    ),
    Alert(
        "SatrapStrangers",
        "increase(satrap_shard_malformed_messages_total[10m]) > 0",
        0,
        "warning",
        f"{_WHERE} received messages that no client of satrap sends",
        "Find out who reaches its port; close the network to all but the processes of the run.",
    ),
    Alert(
        "SatrapLostMessages",
        "rate(satrap_worker_resent_requests_total[5m]) > 0",
        10,
        "warning",
        f"{_WHERE} has been sending messages again for ten minutes",
        "Look at the network between it and the shards, and at busy or restarted shards.",
    ),
    Alert(
        "SatrapShardBusy",
        "rate(satrap_shard_busy_seconds_total[5m]) > 0.9",
        15,
        "warning",
        f"{_WHERE} is busy for {{{{ $value | humanizePercentage }}}} of the time, and limits the workers",
        "Resume with more shards (cluster.shards), or give the shard a processor of its own.",
    ),
    Alert(
        "SatrapWaitsForData",
        'rate(satrap_worker_stage_seconds_total{stage="read"}[5m]) > 0.5',
        15,
        "warning",
        f"{_WHERE} waits for data for {{{{ $value | humanizePercentage }}}} of the time",
        "Add loaders (cluster.loaders), convert the data with satrap prepare, or use a faster disk.",
    ),
    Alert(
        "SatrapMemoryFull",
        "rate(satrap_shard_evicted_rows_total[10m]) > 0.5 * rate(satrap_shard_created_rows_total[10m]) > 0",
        30,
        "warning",
        f"{_WHERE} evicts more than half as many rows as it creates",
        "Memory is full. If validation suffers, raise embedding.memory, or set embedding.admission or tier.",
    ),
    Alert(
        "SatrapFewDescriptors",
        f"process_open_fds{{{ROLES}}} / process_max_fds > 0.8",
        5,
        "warning",
        f"{_WHERE} has {{{{ $value | humanizePercentage }}}} of the files and connections that it may open",
        "Raise the limit (ulimit -n, or LimitNOFILE of a unit).",
    ),
)
"""All rules."""


def alerts() -> dict[str, Any]:
    """Return a file of rules for Prometheus, as plain data."""
    return {"groups": [{"name": "satrap", "rules": [_rule(one) for one in ALERTS]}]}


def _rule(one: Alert) -> dict[str, Any]:
    return {
        "alert": one.name,
        "expr": one.expr,
        **({"for": f"{one.minutes}m"} if one.minutes else {}),
        "labels": {"severity": one.severity},
        "annotations": {"summary": one.summary, "description": one.action},
    }
