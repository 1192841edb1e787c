"""Every metric: the names are a promise to dashboards and alerts, so changing one is a decision."""

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
        help: what it is, one line.
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
    Metric("satrap_worker_samples", "counter", "Samples trained, of all workers; in async of this one."),
    Metric("satrap_worker_epoch", "gauge", "Pass over the data that is under way, from 0."),
    Metric("satrap_worker_loss", "gauge", "Training loss, average over about 50 steps."),
    Metric(
        "satrap_worker_event_time_seconds",
        "gauge",
        "Time of the latest event of a stream that was trained on, seconds since 1970.",
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
        "Updates a lookup did not see, as measured by the shards: this worker's own, and those of others.",
        "updates",
        ("whose",),
        _MISSED,
    ),
    Metric("satrap_worker_lookup_seconds", "summary", "From a lookup's issue to its rows.", "seconds"),
    Metric(
        "satrap_worker_push_seconds", "summary", "From an update's issue to its acknowledgement.", "seconds"
    ),
    Metric("satrap_worker_lookups_in_flight", "gauge", "Lookups without an answer."),
    Metric("satrap_worker_pushes_in_flight", "gauge", "Updates without an acknowledgement."),
    Metric("satrap_worker_waiting_requests", "gauge", "Messages to shards without an answer."),
    Metric("satrap_worker_resent_requests", "counter", "Messages sent again after a loss."),
    Metric("satrap_worker_sent_bytes", "counter", "Payload sent to shards.", "bytes"),
    Metric("satrap_worker_received_bytes", "counter", "Payload received from shards.", "bytes"),
    Metric("satrap_worker_ready_batches", "gauge", "Batches read and not trained yet."),
    Metric("satrap_worker_distinct_ids_ratio", "gauge", "Distinct ids / ids of the last batch.", "ratio"),
    # of a shard server
    Metric("satrap_shard_rows", "gauge", "Rows held."),
    Metric("satrap_shard_memory_bytes", "gauge", "Memory of the rows.", "bytes"),
    Metric("satrap_shard_created_rows", "counter", "Rows created."),
    Metric("satrap_shard_evicted_rows", "counter", "Rows evicted."),
    Metric("satrap_shard_requests", "counter", "Requests executed.", labels=("kind",)),
    Metric("satrap_shard_refused_requests", "counter", "Requests answered with an error."),
    Metric("satrap_shard_repeated_requests", "counter", "Requests that came again; executed once."),
    Metric("satrap_shard_malformed_messages", "counter", "Messages that could not be believed."),
    Metric("satrap_shard_busy_seconds", "counter", "Time spent executing requests.", "seconds"),
    Metric("satrap_shard_queued_requests", "gauge", "Requests received and not executed."),
    Metric("satrap_shard_queued_bytes", "gauge", "Payload received and not executed.", "bytes"),
    Metric("satrap_shard_clients", "gauge", "Clients known."),
    Metric("satrap_shard_received_bytes", "counter", "Payload received.", "bytes"),
    Metric("satrap_shard_sent_bytes", "counter", "Payload sent.", "bytes"),
    Metric("satrap_shard_completed_steps", "counter", "Optimizer steps of sync with several workers."),
    Metric("satrap_shard_tier_rows", "gauge", "Rows that are on disk only."),
    Metric("satrap_shard_tier_bytes", "gauge", "Disk space taken.", "bytes"),
    Metric("satrap_shard_tier_read_rows", "counter", "Rows read from disk."),
    Metric("satrap_shard_tier_written_rows", "counter", "Rows written to disk."),
    Metric(
        "satrap_shard_tier_prefetched_rows", "counter", "Rows asked of the disk before they were looked up."
    ),
    Metric("satrap_shard_tier_prefetch_hits", "counter", "Rows among them that were then read."),
    # of an embedding worker
    Metric("satrap_embedding_worker_workers", "gauge", "Workers it serves."),
    Metric("satrap_embedding_worker_open_lookups", "gauge", "Lookups that wait for their update."),
    Metric("satrap_embedding_worker_samples", "counter", "Samples whose ids were looked up and pooled."),
    Metric(
        "satrap_embedding_worker_busy_seconds",
        "counter",
        "Time spent on ids, pooling and gradients, by all threads.",
        "seconds",
    ),
    Metric("satrap_embedding_worker_queued_requests", "gauge", "Requests received and not answered."),
    Metric("satrap_embedding_worker_refused_requests", "counter", "Requests answered with an error."),
    Metric("satrap_embedding_worker_received_bytes", "counter", "Payload received from workers.", "bytes"),
    Metric("satrap_embedding_worker_sent_bytes", "counter", "Payload sent to workers.", "bytes"),
    # of a loader
    Metric("satrap_loader_passes", "gauge", "Passes over the data under way, one for each worker."),
    Metric("satrap_loader_ready_batches", "gauge", "Batches read and not asked for yet."),
    Metric("satrap_loader_batches", "counter", "Batches handed to workers."),
    Metric("satrap_loader_samples", "counter", "Samples handed to workers."),
    Metric("satrap_loader_busy_seconds", "counter", "Time spent answering, waiting for rows too.", "seconds"),
    Metric("satrap_loader_queued_requests", "gauge", "Requests received and not executed."),
    Metric("satrap_loader_sent_bytes", "counter", "Payload sent to workers.", "bytes"),
    # of a server of scores
    Metric("satrap_serve_step", "gauge", "Training step whose rows and network answer."),
    Metric("satrap_serve_age_seconds", "gauge", "Time since the served version was cut.", "seconds"),
    Metric("satrap_serve_answers", "counter", "Requests answered, by HTTP status.", labels=("status",)),
    Metric("satrap_serve_items", "counter", "Items scored."),
    Metric("satrap_serve_batches", "counter", "Passes through the network; each joins the waiting requests."),
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
    Metric("satrap_serve_missing_ids", "counter", "Ids among them without a row.", labels=("table",)),
    Metric("satrap_serve_newest_step", "gauge", "Training step of the newest version, served or not."),
    Metric("satrap_serve_loaded_versions", "counter", "Versions that took the place of an older one."),
    Metric("satrap_serve_reloads", "counter", "Versions among them that were read as a whole."),
    Metric("satrap_serve_refused_versions", "counter", "Versions that could not be used."),
    Metric(
        "satrap_serve_load_seconds",
        "counter",
        "From noticing a version to serving it.",
        "seconds",
    ),
    Metric("satrap_serve_logged_items", "counter", "Items written to the request log."),
    Metric("satrap_serve_lost_log_items", "counter", "Items that the request log could not take."),
    Metric("satrap_serve_rows", "gauge", "Rows held."),
    Metric("satrap_serve_memory_bytes", "gauge", "Memory of the rows.", "bytes"),
    Metric("satrap_serve_tier_rows", "gauge", "Rows that are on disk only."),
    Metric("satrap_serve_tier_read_rows", "counter", "Rows read from disk."),
    Metric("satrap_serve_earlier_versions", "gauge", "Versions in memory that it can go back to at once."),
    Metric("satrap_serve_earlier_bytes", "gauge", "Memory of what is kept of them.", "bytes"),
    Metric("satrap_serve_rollbacks", "counter", "Times that an operator chose another version."),
    Metric("satrap_serve_shadow_step", "gauge", "Training step of the shadow's last answer."),
    Metric("satrap_serve_shadow_answers", "counter", "Requests that the shadow scored, too."),
    Metric(
        "satrap_serve_shadow_dropped_requests",
        "counter",
        "Requests that it did not score, because it was not ready or behind.",
    ),
    Metric("satrap_serve_shadow_failed_requests", "counter", "Requests that it could not score."),
    Metric(
        "satrap_serve_shadow_mean",
        "gauge",
        "Its mean prediction, over the last 100,000 items.",
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
