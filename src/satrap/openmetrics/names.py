"""All metrics. Dashboards and alerts depend on the names, so renaming one needs a decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "summary", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Args:
        name: of the family: a counter's samples end in `_total`, a summary's in `_count` and `_sum`.
        kind: type, as OpenMetrics names it.
        help: description, one line.
        unit: the last word of the name, if it has one.
        labels: names of the labels of its samples.
        bounds: upper bounds of a histogram's buckets, without infinity.
    """

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


_MISSED = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0)

METRICS = (
    Metric("satrap_role", "info", "Kind and number of the process, and satrap's version."),
    # of a worker
    Metric("satrap_worker_steps", "counter", "Training steps taken."),
    Metric("satrap_worker_refused_steps", "counter", "Steps refused: loss or gradients were not finite."),
    Metric(
        "satrap_worker_samples", "counter", "Samples trained, of all workers; in async mode of this worker."
    ),
    Metric("satrap_worker_epoch", "gauge", "Current epoch, from 0."),
    Metric("satrap_worker_loss", "gauge", "Training loss, average over about 50 steps."),
    Metric(
        "satrap_worker_event_time_seconds",
        "gauge",
        "Time of the latest trained event of a stream, seconds since 1970.",
        "seconds",
    ),
    Metric(
        "satrap_worker_stage_seconds",
        "counter",
        "Time of the training thread by stage: read, lookup, forward, dense, push.",
        "seconds",
        ("stage",),
    ),
    Metric(
        "satrap_worker_staleness_updates",
        "histogram",
        "Updates missed by a lookup, as measured by the shards: this worker's own, and other workers'.",
        "updates",
        ("whose",),
        _MISSED,
    ),
    Metric("satrap_worker_lookup_seconds", "summary", "Time from a lookup's issue to its rows.", "seconds"),
    Metric(
        "satrap_worker_push_seconds",
        "summary",
        "Time from an update's issue to its acknowledgement.",
        "seconds",
    ),
    Metric("satrap_worker_lookups_in_flight", "gauge", "Lookups without a response."),
    Metric("satrap_worker_pushes_in_flight", "gauge", "Updates without an acknowledgement."),
    Metric("satrap_worker_waiting_requests", "gauge", "Messages to shards without a response."),
    Metric("satrap_worker_resent_requests", "counter", "Messages sent again after a loss."),
    Metric("satrap_worker_sent_bytes", "counter", "Payload sent to shards.", "bytes"),
    Metric("satrap_worker_received_bytes", "counter", "Payload received from shards.", "bytes"),
    Metric("satrap_worker_ready_batches", "gauge", "Batches read and not trained yet."),
    Metric("satrap_worker_distinct_ids_ratio", "gauge", "Unique ids / ids of the last batch.", "ratio"),
    # of a shard server
    Metric("satrap_shard_rows", "gauge", "Rows held."),
    Metric("satrap_shard_memory_bytes", "gauge", "Memory of the rows.", "bytes"),
    Metric("satrap_shard_created_rows", "counter", "Rows created."),
    Metric("satrap_shard_evicted_rows", "counter", "Rows evicted."),
    Metric("satrap_shard_requests", "counter", "Requests executed.", labels=("kind",)),
    Metric("satrap_shard_refused_requests", "counter", "Requests answered with an error."),
    Metric("satrap_shard_repeated_requests", "counter", "Requests received again and executed only once."),
    Metric("satrap_shard_malformed_messages", "counter", "Malformed messages received."),
    Metric("satrap_shard_busy_seconds", "counter", "Time spent executing requests.", "seconds"),
    Metric("satrap_shard_queued_requests", "gauge", "Requests received but not executed."),
    Metric("satrap_shard_queued_bytes", "gauge", "Payload received but not executed.", "bytes"),
    Metric("satrap_shard_clients", "gauge", "Known clients."),
    Metric("satrap_shard_received_bytes", "counter", "Payload received.", "bytes"),
    Metric("satrap_shard_sent_bytes", "counter", "Payload sent.", "bytes"),
    Metric("satrap_shard_completed_steps", "counter", "Optimizer steps in sync mode with several workers."),
    Metric("satrap_shard_tier_rows", "gauge", "Rows that are on disk only."),
    Metric("satrap_shard_tier_bytes", "gauge", "Disk space taken.", "bytes"),
    Metric("satrap_shard_tier_read_rows", "counter", "Rows read from disk."),
    Metric("satrap_shard_tier_written_rows", "counter", "Rows written to disk."),
    Metric("satrap_shard_tier_prefetched_rows", "counter", "Rows prefetched from disk before their lookup."),
    Metric("satrap_shard_tier_prefetch_hits", "counter", "Prefetched rows that were then looked up."),
    # of an embedding worker
    Metric("satrap_embedding_worker_workers", "gauge", "Workers served."),
    Metric("satrap_embedding_worker_open_lookups", "gauge", "Lookups waiting for their update."),
    Metric("satrap_embedding_worker_samples", "counter", "Samples whose ids were looked up and pooled."),
    Metric(
        "satrap_embedding_worker_busy_seconds",
        "counter",
        "Time spent on ids, pooling and gradients, by all threads.",
        "seconds",
    ),
    Metric("satrap_embedding_worker_queued_requests", "gauge", "Requests received but not answered."),
    Metric("satrap_embedding_worker_refused_requests", "counter", "Requests answered with an error."),
    Metric("satrap_embedding_worker_received_bytes", "counter", "Payload received from workers.", "bytes"),
    Metric("satrap_embedding_worker_sent_bytes", "counter", "Payload sent to workers.", "bytes"),
    # of a loader
    Metric("satrap_loader_passes", "gauge", "Epochs being read, one per worker."),
    Metric("satrap_loader_ready_batches", "gauge", "Batches read but not requested yet."),
    Metric("satrap_loader_batches", "counter", "Batches handed to workers."),
    Metric("satrap_loader_samples", "counter", "Samples handed to workers."),
    Metric(
        "satrap_loader_busy_seconds", "counter", "Time spent answering, including waits for rows.", "seconds"
    ),
    Metric("satrap_loader_queued_requests", "gauge", "Requests received but not executed."),
    Metric("satrap_loader_sent_bytes", "counter", "Payload sent to workers.", "bytes"),
    # of a server of scores
    Metric("satrap_serve_step", "gauge", "Training step of the served rows and network."),
    Metric("satrap_serve_age_seconds", "gauge", "Time since the served version was cut.", "seconds"),
    Metric("satrap_serve_answers", "counter", "Requests answered, by HTTP status.", labels=("status",)),
    Metric("satrap_serve_items", "counter", "Items scored."),
    Metric(
        "satrap_serve_batches", "counter", "Forward passes of the network; each batches the waiting requests."
    ),
    Metric("satrap_serve_queued_requests", "gauge", "Requests that wait to be scored."),
    Metric("satrap_serve_late_requests", "counter", "Requests whose deadline passed in the queue."),
    Metric("satrap_serve_abandoned_requests", "counter", "Requests whose client left before the answer."),
    Metric(
        "satrap_serve_stage_seconds",
        "counter",
        "Time by stage: parse, write (event loop); encode, lookup, network (scoring); wait (queue).",
        "seconds",
        ("stage",),
    ),
    Metric("satrap_serve_looked_up_ids", "counter", "Unique ids looked up.", labels=("table",)),
    Metric("satrap_serve_missing_ids", "counter", "Unique ids looked up without a row.", labels=("table",)),
    Metric("satrap_serve_newest_step", "gauge", "Training step of the newest version, served or not."),
    Metric("satrap_serve_loaded_versions", "counter", "Versions that replaced an older one."),
    Metric("satrap_serve_reloads", "counter", "Loaded versions that were read in full."),
    Metric("satrap_serve_refused_versions", "counter", "Versions that were unusable."),
    Metric(
        "satrap_serve_load_seconds",
        "counter",
        "Time from detecting a version to serving it.",
        "seconds",
    ),
    Metric("satrap_serve_logged_items", "counter", "Items written to the request log."),
    Metric("satrap_serve_lost_log_items", "counter", "Items that could not be written to the request log."),
    Metric("satrap_serve_rows", "gauge", "Rows held."),
    Metric("satrap_serve_memory_bytes", "gauge", "Memory of the rows.", "bytes"),
    Metric("satrap_serve_tier_rows", "gauge", "Rows that are on disk only."),
    Metric("satrap_serve_tier_read_rows", "counter", "Rows read from disk."),
    Metric("satrap_serve_earlier_versions", "gauge", "Versions in memory for an immediate rollback."),
    Metric("satrap_serve_earlier_bytes", "gauge", "Memory of these earlier versions.", "bytes"),
    Metric("satrap_serve_rollbacks", "counter", "Times that an operator selected another version."),
    Metric("satrap_serve_shadow_step", "gauge", "Training step of the shadow's last response."),
    Metric("satrap_serve_shadow_answers", "counter", "Requests that the shadow also scored."),
    Metric(
        "satrap_serve_shadow_dropped_requests",
        "counter",
        "Requests that the shadow skipped, because it was not ready or lagged behind.",
    ),
    Metric("satrap_serve_shadow_failed_requests", "counter", "Requests that the shadow failed to score."),
    Metric(
        "satrap_serve_shadow_mean",
        "gauge",
        "The shadow's mean prediction, over the last 100,000 items.",
        labels=("prediction",),
    ),
    Metric(
        "satrap_serve_shadow_served_mean",
        "gauge",
        "The served mean prediction, over the same items.",
        labels=("prediction",),
    ),
    Metric(
        "satrap_serve_shadow_difference",
        "gauge",
        "Mean absolute difference of both predictions, over the same items.",
        labels=("prediction",),
    ),
)
"""All metrics, by role."""
