"""A dashboard for Grafana over the metrics of a run's processes and servers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
"""Data source of all panels, chosen by the dashboard's first variable."""

WIDTH, HEIGHT = 8, 8
"""Size of a panel; a row has 24 columns."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart.

    Args:
        title: its title.
        unit: Grafana's name of the unit.
        queries: (PromQL, legend) pairs, each for one or more lines; `$run` and `$window` are filled in later.
        help: how to read the chart.
        stacked: whether lines are stacked.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    help: str = ""
    stacked: bool = False


_EACH = "{{instance}}"


def _rate(name: str, legend: str) -> tuple[str, str]:
    return f"rate({name}{{$run}}[$window])", legend


def _mean(name: str, legend: str) -> tuple[str, str]:
    """The mean of a summary's observations in the window; no value without observations."""
    count = f"rate({name}_count{{$run}}[$window])"
    return f"rate({name}_sum{{$run}}[$window]) / ({count} > 0)", legend


def _staleness(share: float) -> tuple[str, str]:
    buckets = "sum by (le, whose) (rate(satrap_worker_staleness_updates_bucket{$run}[$window]))"
    return f"histogram_quantile({share}, {buckets})", f"{{{{whose}}}}, {share:.0%}"


PANELS = (
    Panel(
        "Samples per second",
        "short",
        (_rate("satrap_worker_samples_total", _EACH),),
        "Each worker counts the samples of all workers; in async mode, only its own.",
    ),
    Panel("Steps per second", "short", (_rate("satrap_worker_steps_total", _EACH),)),
    Panel("Training loss", "short", (("satrap_worker_loss{$run}", _EACH),), "Average over about 50 steps."),
    Panel(
        "Time of a worker, by stage",
        "percentunit",
        (("avg by (stage) (rate(satrap_worker_stage_seconds_total{$run}[$window]))", "{{stage}}"),),
        "read: waiting for data. lookup: waiting for rows. Mean over the workers.",
        stacked=True,
    ),
    Panel(
        "Time of a lookup and of an update",
        "s",
        (
            _mean("satrap_worker_lookup_seconds", "lookup, " + _EACH),
            _mean("satrap_worker_push_seconds", "update, " + _EACH),
        ),
        "Mean time from request to answer. In hybrid and async mode, training continues during this time.",
    ),
    Panel(
        "Staleness",
        "short",
        (_staleness(0.5), _staleness(0.99)),
        "Updates that a lookup did not see: the worker's own updates, and updates of other workers.",
    ),
    Panel(
        "Busy share",
        "percentunit",
        (
            _rate("satrap_shard_busy_seconds_total", _EACH),
            _rate("satrap_loader_busy_seconds_total", _EACH),
            _rate("satrap_embedding_worker_busy_seconds_total", _EACH),
        ),
        "Near 100 %, a shard or loader is the bottleneck. Embedding workers have several threads.",
    ),
    Panel(
        "Queued requests",
        "short",
        (
            ("satrap_shard_queued_requests{$run}", _EACH),
            ("satrap_loader_queued_requests{$run}", _EACH),
            ("satrap_embedding_worker_queued_requests{$run}", _EACH),
        ),
    ),
    Panel(
        "Ready batches",
        "short",
        (("satrap_worker_ready_batches{$run}", _EACH), ("satrap_loader_ready_batches{$run}", _EACH)),
        "Always 0: reading is the bottleneck.",
    ),
    Panel("Rows", "short", (("satrap_shard_rows{$run}", _EACH),), stacked=True),
    Panel(
        "Rows created and evicted per second",
        "short",
        (
            ("sum by (run) (rate(satrap_shard_created_rows_total{$run}[$window]))", "created"),
            ("sum by (run) (rate(satrap_shard_evicted_rows_total{$run}[$window]))", "evicted"),
        ),
        "Equal rates of creation and eviction: memory is full.",
    ),
    Panel(
        "Rows on disk",
        "short",
        (
            ("sum by (run) (satrap_shard_tier_rows{$run})", "rows on disk only"),
            ("sum by (run) (rate(satrap_shard_tier_read_rows_total{$run}[$window]))", "read per second"),
            (
                "sum by (run) (rate(satrap_shard_tier_written_rows_total{$run}[$window]))",
                "written per second",
            ),
        ),
        "With embedding.tier only.",
    ),
    Panel(
        "Memory",
        "bytes",
        (
            ("process_resident_memory_bytes{$run}", _EACH),
            ("satrap_shard_memory_bytes{$run}", "rows of " + _EACH),
        ),
    ),
    Panel("CPU cores in use", "short", (_rate("process_cpu_seconds_total", _EACH),)),
    Panel(
        "Bytes on the wire, per second",
        "Bps",
        (
            _rate("satrap_worker_sent_bytes_total", "sent by " + _EACH),
            _rate("satrap_worker_received_bytes_total", "received by " + _EACH),
            _rate("satrap_shard_sent_bytes_total", "sent by " + _EACH),
            _rate("satrap_shard_received_bytes_total", "received by " + _EACH),
        ),
        "Payload of messages between workers and servers.",
    ),
    Panel(
        "Responding processes",
        "short",
        (("sum by (role) (up{$run})", "{{role}}"),),
    ),
    Panel(
        "Restarts in the last hour",
        "short",
        (("sum by (role) (changes(process_start_time_seconds{$run}[1h]))", "{{role}}"),),
    ),
    Panel(
        "Errors per second",
        "short",
        (
            _rate("satrap_worker_refused_steps_total", "skipped steps, " + _EACH),
            _rate("satrap_worker_resent_requests_total", "resent messages, " + _EACH),
            _rate("satrap_shard_refused_requests_total", "rejected requests, " + _EACH),
            _rate("satrap_shard_malformed_messages_total", "malformed messages, " + _EACH),
        ),
        "All zero in a healthy run.",
    ),
    Panel(
        "Responses of servers per second",
        "short",
        (("sum by (status) (rate(satrap_serve_answers_total{$run}[$window]))", "{{status}}"),),
        "By HTTP status, all servers together.",
        stacked=True,
    ),
    Panel(
        "Items scored per second",
        "short",
        (_rate("satrap_serve_items_total", _EACH),),
    ),
    Panel(
        "Time of a server, by stage",
        "percentunit",
        (("avg by (stage) (rate(satrap_serve_stage_seconds_total{$run}[$window]))", "{{stage}}"),),
        "encode, lookup and network share the scoring thread: near 100 % in total, requests queue. wait: "
        "total time that requests waited for this thread. Mean over the servers.",
        stacked=True,
    ),
    Panel(
        "Time of a response, by stage",
        "s",
        (
            (
                "sum by (stage) (rate(satrap_serve_stage_seconds_total{$run}[$window])) "
                "/ scalar(sum(rate(satrap_serve_answers_total{$run}[$window])) > 0)",
                "{{stage}}",
            ),
        ),
        "Mean. Requests that are scored together share the time of encode, lookup and network.",
        stacked=True,
    ),
    Panel(
        "Batch size and queued requests",
        "short",
        (
            (
                "rate(satrap_serve_items_total{$run}[$window]) / "
                "(rate(satrap_serve_batches_total{$run}[$window]) > 0)",
                "items per batch, " + _EACH,
            ),
            ("satrap_serve_queued_requests{$run}", "queued requests, " + _EACH),
        ),
    ),
    Panel(
        "Served step",
        "short",
        (("satrap_serve_step{$run}", _EACH), ("satrap_serve_newest_step{$run}", "newest seen by " + _EACH)),
    ),
    Panel(
        "Age of the served version",
        "s",
        (("satrap_serve_age_seconds{$run}", _EACH),),
        "Age since the version was cut. A sawtooth of publish.every plus the loading time.",
    ),
    Panel(
        "Versions per minute",
        "short",
        (
            ("60 * rate(satrap_serve_loaded_versions_total{$run}[$window])", "served, " + _EACH),
            ("60 * rate(satrap_serve_reloads_total{$run}[$window])", "loaded as a whole, " + _EACH),
            ("60 * rate(satrap_serve_refused_versions_total{$run}[$window])", "refused, " + _EACH),
        ),
        "While a version is loaded as a whole, the previous one is also in memory.",
    ),
    Panel(
        "Ids without a row",
        "percentunit",
        (
            (
                "sum by (table) (rate(satrap_serve_missing_ids_total{$run}[$window])) "
                "/ (sum by (table) (rate(satrap_serve_looked_up_ids_total{$run}[$window])) > 0)",
                "{{table}}",
            ),
        ),
        "Share of the unique ids of requests that have no row.",
    ),
    Panel(
        "Rows of servers",
        "bytes",
        (("satrap_serve_memory_bytes{$run}", _EACH),),
        "Memory of the rows.",
    ),
    Panel(
        "Late and abandoned requests per second",
        "short",
        (
            _rate("satrap_serve_late_requests_total", "late, " + _EACH),
            _rate("satrap_serve_abandoned_requests_total", "abandoned, " + _EACH),
        ),
    ),
)
"""All panels, in reading order."""


def queries(run: str, window: str) -> list[str]:
    """Return the PromQL of all panels for runs that match a pattern, with a window such as 1m."""
    return [_filled(query, run, window) for panel in PANELS for query, _ in panel.queries]


def _filled(query: str, run: str, window: str) -> str:
    return query.replace("$run", f'run=~"{run}"').replace("$window", window)


def dashboard() -> dict[str, Any]:
    """Return the dashboard for import into Grafana (version 11 and later)."""
    return {
        "title": "satrap",
        "uid": "satrap",
        "tags": ["satrap"],
        "editable": True,
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _variables() -> Iterable[dict[str, Any]]:
    yield {"type": "datasource", "name": "datasource", "label": "Source", "query": "prometheus"}
    yield {
        "type": "query",
        "name": "run",
        "label": "Run",
        "datasource": SOURCE,
        "query": {"query": "label_values(satrap_role_info, run)", "refId": "run"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
    }


def _panel(number: int, one: Panel) -> dict[str, Any]:
    across = 24 // WIDTH
    drawn: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 10}
    if one.stacked:
        drawn |= {"fillOpacity": 40, "stacking": {"mode": "normal", "group": "A"}}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": one.title,
        "description": one.help,
        "datasource": SOURCE,
        "gridPos": {
            "x": number % across * WIDTH,
            "y": number // across * HEIGHT,
            "w": WIDTH,
            "h": HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": one.unit, "custom": drawn}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + position),
                "datasource": SOURCE,
                "expr": _filled(query, "$run", "$__rate_interval"),
                "legendFormat": legend,
            }
            for position, (query, legend) in enumerate(one.queries)
        ],
    }
