"""Alert rules for Prometheus: conditions that an operator of a run must act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule.

    Args:
        name: name of the alert.
        expr: PromQL; each resulting series is an alert.
        minutes: time for which the condition must hold.
        severity: critical: training has stopped, or will stop; warning: training continues in a degraded
            state.
        summary: the problem, with labels of the series.
        action: advice for the operator.
    """

    name: str
    expr: str
    minutes: int
    severity: Literal["critical", "warning"]
    summary: str
    action: str


ROLES = 'role=~"worker|shard|loader|embedding-worker|server"'
"""Matches the processes in the target list of a run folder, and servers on Kubernetes."""

_WHERE = "{{ $labels.instance }} of run {{ $labels.run }}"

ALERTS = (
    Alert(
        "SatrapProcessDown",
        f"up{{{ROLES}}} == 0",
        2,
        "critical",
        f"{_WHERE} does not answer",
        "Look at the last lines of satrap train. It restarts killed processes up to cluster.restarts "
        "times; if satrap train itself was killed, continue with --resume.",
    ),
    Alert(
        "SatrapNoSteps",
        "rate(satrap_worker_steps_total[5m]) == 0",
        15,
        "critical",
        f"{_WHERE} takes no steps",
        "This is normal during evaluations and while a snapshot is loaded. Otherwise look for processes "
        "that are down, at the shards' /ready, and at the storage of the snapshots.",
    ),
    Alert(
        "SatrapRestarts",
        f"changes(process_start_time_seconds{{{ROLES}}}[30m]) >= 2",
        0,
        "critical",
        f"{_WHERE} was restarted {{{{ $value }}}} times in 30 minutes",
        "The run ends after cluster.restarts restarts. The usual cause is lack of memory: compare "
        "embedding.memory with the machine, and look for the kernel's messages about killed processes.",
    ),
    Alert(
        "SatrapRefusedSteps",
        "increase(satrap_worker_refused_steps_total[10m]) > 0",
        0,
        "warning",
        f"{_WHERE} skipped steps: loss or gradients were not finite",
        "Lower the learning rates, set training.clip_norm, or look for extreme values in the data.",
    ),
    Alert(
        "SatrapRefusedRequests",
        "increase(satrap_shard_refused_requests_total[10m]) > 0",
        0,
        "warning",
        f"{_WHERE} rejected requests",
        "See the shard's log for the reason: no memory left, another run, or an old generation of workers.",
    ),
    Alert(
        "SatrapStrangers",
        "increase(satrap_shard_malformed_messages_total[10m]) > 0",
        0,
        "warning",
        f"{_WHERE} received messages that no client of satrap sends",
        "Find the clients that reach this port, and restrict the network to the processes of the run.",
    ),
    Alert(
        "SatrapLostMessages",
        "rate(satrap_worker_resent_requests_total[5m]) > 0",
        10,
        "warning",
        f"{_WHERE} has been resending messages for ten minutes",
        "Look at the network between the worker and the shards, and at busy or restarted shards.",
    ),
    Alert(
        "SatrapShardBusy",
        "rate(satrap_shard_busy_seconds_total[5m]) > 0.9",
        15,
        "warning",
        f"{_WHERE} is busy for {{{{ $value | humanizePercentage }}}} of the time, and limits the workers",
        "Resume with more shards (cluster.shards), or give the shard its own CPU core.",
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
        "SatrapServerFails",
        'sum without (status) (rate(satrap_serve_answers_total{status=~"5.."}[5m]))'
        " > 0.01 * sum without (status) (rate(satrap_serve_answers_total[5m]))",
        5,
        "critical",
        f"{_WHERE} answers more than one request in a hundred with status 5xx",
        "503 means a full queue and 504 a missed deadline: start more servers, or raise serving.max_queue "
        "and serving.deadline. The server's log has the traceback of a 500.",
    ),
    Alert(
        "SatrapServerRefusesVersions",
        "increase(satrap_serve_refused_versions_total[10m]) > 0",
        0,
        "warning",
        f"{_WHERE} could not load a version, and still serves the previous one",
        "The server's log names the version and the damage. The next full version (publish.full_every) "
        "repairs this.",
    ),
    Alert(
        "SatrapServerBehind",
        "satrap_serve_newest_step > satrap_serve_step",
        10,
        "warning",
        f"{_WHERE} has not served the newest version for ten minutes",
        "If an operator pinned a version (satrap versions list URL), release it. Otherwise look at the "
        "log, and check whether loading takes longer than publish.every.",
    ),
    Alert(
        "SatrapServerBusy",
        "sum without (stage) "
        '(rate(satrap_serve_stage_seconds_total{stage=~"encode|lookup|network"}[5m])) > 0.9',
        10,
        "warning",
        f"the scoring thread of {_WHERE} is busy for {{{{ $value | humanizePercentage }}}} of the time",
        "Requests will soon queue. Start more servers.",
    ),
    Alert(
        "SatrapServerMissingIds",
        "rate(satrap_serve_missing_ids_total[30m]) > 0.5 * rate(satrap_serve_looked_up_ids_total[30m]) > 0",
        30,
        "warning",
        f"{_WHERE} finds no rows for most ids of table {{{{ $labels.table }}}}",
        "Clients probably format these ids differently than the training data. New ids have no rows until "
        "a later version.",
    ),
    Alert(
        "SatrapFewDescriptors",
        f"process_open_fds{{{ROLES}}} / process_max_fds > 0.8",
        5,
        "warning",
        f"{_WHERE} has {{{{ $value | humanizePercentage }}}} of its limit of open files and connections",
        "Raise the limit (ulimit -n, or LimitNOFILE of a systemd unit).",
    ),
)
"""All rules."""


def alerts() -> dict[str, Any]:
    """Return a Prometheus rule file, as plain data."""
    return {"groups": [{"name": "satrap", "rules": [_rule(alert) for alert in ALERTS]}]}


def _rule(one: Alert) -> dict[str, Any]:
    return {
        "alert": one.name,
        "expr": one.expr,
        **({"for": f"{one.minutes}m"} if one.minutes else {}),
        "labels": {"severity": one.severity},
        "annotations": {"summary": one.summary, "description": one.action},
    }
