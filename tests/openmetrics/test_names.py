"""The names are frozen: dashboards and alerts use them, so changing this list is a decision."""

from __future__ import annotations

import re
from pathlib import Path

from satrap.openmetrics import METRICS

NAMES = [
    "satrap_embedding_worker_busy_seconds",
    "satrap_embedding_worker_open_lookups",
    "satrap_embedding_worker_queued_requests",
    "satrap_embedding_worker_received_bytes",
    "satrap_embedding_worker_refused_requests",
    "satrap_embedding_worker_samples",
    "satrap_embedding_worker_sent_bytes",
    "satrap_embedding_worker_workers",
    "satrap_loader_batches",
    "satrap_loader_busy_seconds",
    "satrap_loader_passes",
    "satrap_loader_queued_requests",
    "satrap_loader_ready_batches",
    "satrap_loader_samples",
    "satrap_loader_sent_bytes",
    "satrap_role",
    "satrap_serve_abandoned_requests",
    "satrap_serve_age_seconds",
    "satrap_serve_answers",
    "satrap_serve_batches",
    "satrap_serve_earlier_bytes",
    "satrap_serve_earlier_versions",
    "satrap_serve_items",
    "satrap_serve_late_requests",
    "satrap_serve_load_seconds",
    "satrap_serve_loaded_versions",
    "satrap_serve_logged_items",
    "satrap_serve_looked_up_ids",
    "satrap_serve_lost_log_items",
    "satrap_serve_memory_bytes",
    "satrap_serve_missing_ids",
    "satrap_serve_newest_step",
    "satrap_serve_queued_requests",
    "satrap_serve_refused_versions",
    "satrap_serve_reloads",
    "satrap_serve_rollbacks",
    "satrap_serve_rows",
    "satrap_serve_shadow_answers",
    "satrap_serve_shadow_difference",
    "satrap_serve_shadow_dropped_requests",
    "satrap_serve_shadow_failed_requests",
    "satrap_serve_shadow_mean",
    "satrap_serve_shadow_served_mean",
    "satrap_serve_shadow_step",
    "satrap_serve_stage_seconds",
    "satrap_serve_step",
    "satrap_serve_tier_read_rows",
    "satrap_serve_tier_rows",
    "satrap_shard_busy_seconds",
    "satrap_shard_clients",
    "satrap_shard_completed_steps",
    "satrap_shard_created_rows",
    "satrap_shard_evicted_rows",
    "satrap_shard_malformed_messages",
    "satrap_shard_memory_bytes",
    "satrap_shard_queued_bytes",
    "satrap_shard_queued_requests",
    "satrap_shard_received_bytes",
    "satrap_shard_refused_requests",
    "satrap_shard_repeated_requests",
    "satrap_shard_requests",
    "satrap_shard_rows",
    "satrap_shard_sent_bytes",
    "satrap_shard_tier_bytes",
    "satrap_shard_tier_prefetch_hits",
    "satrap_shard_tier_prefetched_rows",
    "satrap_shard_tier_read_rows",
    "satrap_shard_tier_rows",
    "satrap_shard_tier_written_rows",
    "satrap_worker_distinct_ids_ratio",
    "satrap_worker_epoch",
    "satrap_worker_event_time_seconds",
    "satrap_worker_lookup_seconds",
    "satrap_worker_lookups_in_flight",
    "satrap_worker_loss",
    "satrap_worker_push_seconds",
    "satrap_worker_pushes_in_flight",
    "satrap_worker_ready_batches",
    "satrap_worker_received_bytes",
    "satrap_worker_refused_steps",
    "satrap_worker_resent_requests",
    "satrap_worker_samples",
    "satrap_worker_sent_bytes",
    "satrap_worker_stage_seconds",
    "satrap_worker_staleness_updates",
    "satrap_worker_steps",
    "satrap_worker_waiting_requests",
]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_names_are_frozen() -> None:
    assert sorted(metric.name for metric in METRICS) == NAMES


def test_buckets_of_staleness_are_frozen() -> None:
    [histogram] = [metric for metric in METRICS if metric.kind == "histogram"]
    assert histogram.bounds == (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)


def test_a_unit_is_the_last_word_of_a_name() -> None:
    for metric in METRICS:
        last = metric.name.rsplit("_", 1)[-1]
        assert (last if last in ("seconds", "bytes", "ratio", "updates") else "") == metric.unit, metric.name
        assert not re.search(r"_(total|sum|count|bucket|info)$", metric.name)
        assert metric.help.endswith(".")


def test_the_document_lists_exactly_these() -> None:
    rows = re.findall(
        r"^\| `(satrap_\w+?)(?:\{(\w+)\})?` \| (\w+) \| (.+?) \| (\w*) \|$", DOCUMENT.read_text("utf-8"), re.M
    )
    expected = [(m.name, "".join(m.labels), m.kind, m.help, m.unit) for m in METRICS]
    assert rows == expected
