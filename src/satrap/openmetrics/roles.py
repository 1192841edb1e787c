"""Conversion of a role's counters to metric values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from satrap.errors import ConfigError
from satrap.openmetrics.endpoint import Endpoint
from satrap.rpc import split_address
from satrap.rpc.server.server import Server
from satrap.runtime.events import MetricsServed, Report
from satrap.store.statistics import TierStatistics

if TYPE_CHECKING:  # a shard server starts without torch
    from satrap.data.remote.server import LoaderStatistics
    from satrap.embedding.workers.service import EmbeddingWorkerStatistics
    from satrap.exchange.telemetry import ShardStatistics, Traffic
    from satrap.train.progress.observer import Progress

Values = dict[str, Any]


def worker_values(rank: int, progress: Progress, traffic: Traffic) -> Values:
    """Return the metrics of a worker, from its exchange's traffic and its progress."""
    plain = {
        "satrap_worker_steps": progress.step,
        "satrap_worker_refused_steps": progress.refused,
        "satrap_worker_samples": progress.samples,
        "satrap_worker_epoch": progress.epoch,
        "satrap_worker_loss": progress.loss,
        "satrap_worker_event_time_seconds": progress.event_time,
        "satrap_worker_lookups_in_flight": traffic.lookups.in_flight,
        "satrap_worker_pushes_in_flight": traffic.pushes.in_flight,
        "satrap_worker_waiting_requests": traffic.waiting,
        "satrap_worker_resent_requests": traffic.resent,
        "satrap_worker_sent_bytes": traffic.sent,
        "satrap_worker_received_bytes": traffic.received,
        "satrap_worker_ready_batches": progress.batches_ready,
        "satrap_worker_distinct_ids_ratio": progress.distinct_ratio,
    }
    return {
        "satrap_role": {"role": "worker", "index": str(rank)},
        **{name: value for name, value in plain.items() if not math.isnan(value)},
        "satrap_worker_stage_seconds": progress.stage_seconds,
        "satrap_worker_staleness_updates": {"own": traffic.own, "others": traffic.others},
        "satrap_worker_lookup_seconds": (traffic.lookups.count, traffic.lookups.seconds),
        "satrap_worker_push_seconds": (traffic.pushes.count, traffic.pushes.seconds),
    }


def shard_values(statistics: ShardStatistics) -> Values:
    """Return the metrics of a shard server."""
    server, tables = statistics.server, statistics.tables.values()
    tier = statistics.tier or TierStatistics()
    return {
        "satrap_role": {"role": "shard", "index": "" if statistics.shard is None else str(statistics.shard)},
        "satrap_shard_rows": statistics.rows,
        "satrap_shard_memory_bytes": statistics.bytes,
        "satrap_shard_created_rows": sum(table.created for table in tables),
        "satrap_shard_evicted_rows": sum(table.evicted for table in tables),
        "satrap_shard_requests": server.requests,
        "satrap_shard_refused_requests": server.refused,
        "satrap_shard_repeated_requests": server.repeated,
        "satrap_shard_malformed_messages": server.malformed,
        "satrap_shard_busy_seconds": server.busy_seconds,
        "satrap_shard_queued_requests": server.queued,
        "satrap_shard_queued_bytes": server.queued_bytes,
        "satrap_shard_clients": server.clients,
        "satrap_shard_received_bytes": server.received_bytes,
        "satrap_shard_sent_bytes": server.sent_bytes,
        "satrap_shard_completed_steps": statistics.steps,
        "satrap_shard_tier_rows": tier.rows,
        "satrap_shard_tier_bytes": tier.bytes,
        "satrap_shard_tier_read_rows": tier.reads,
        "satrap_shard_tier_written_rows": tier.writes,
        "satrap_shard_tier_prefetched_rows": tier.prefetched,
        "satrap_shard_tier_prefetch_hits": tier.prefetch_hits,
    }


def loader_values(statistics: LoaderStatistics) -> Values:
    """Return the metrics of a loader."""
    server = statistics.server
    return {
        "satrap_role": {"role": "loader", "index": ""},
        "satrap_loader_passes": statistics.streams,
        "satrap_loader_ready_batches": statistics.ready,
        "satrap_loader_batches": statistics.batches,
        "satrap_loader_samples": statistics.samples,
        "satrap_loader_busy_seconds": server.busy_seconds,
        "satrap_loader_queued_requests": server.queued,
        "satrap_loader_sent_bytes": server.sent_bytes,
    }


def embedding_worker_values(statistics: EmbeddingWorkerStatistics) -> Values:
    """Return the metrics of an embedding worker."""
    server = statistics.server
    return {
        "satrap_role": {"role": "embedding-worker", "index": ""},
        "satrap_embedding_worker_workers": statistics.workers,
        "satrap_embedding_worker_open_lookups": statistics.open,
        "satrap_embedding_worker_samples": statistics.samples,
        "satrap_embedding_worker_busy_seconds": server.busy_seconds,
        "satrap_embedding_worker_queued_requests": server.queued,
        "satrap_embedding_worker_refused_requests": server.refused,
        "satrap_embedding_worker_received_bytes": server.received_bytes,
        "satrap_embedding_worker_sent_bytes": server.sent_bytes,
    }


def metrics_of(
    server: Server,
    values: Callable[[], Values],
    address: str | None,
    report: Report = lambda _: None,
) -> Endpoint | None:
    """Return the metrics endpoint of a server at HOST:PORT, or None; prints its address on standard output.

    `report` is called with `MetricsServed`. The server is ready unless it recovers. If the address is
    unusable, the server is stopped and `ConfigError` raised.
    """
    if address is None:
        return None
    try:
        host, port = split_address(address)
        endpoint = Endpoint(host, port, values, busy=lambda: _recovering(server))
    except ConfigError:
        server.stop()
        raise
    print(f"satrap {server.handler.role} metrics on http://{endpoint.address}/metrics", flush=True)
    report(MetricsServed(endpoint.reached))
    return endpoint


def _recovering(server: Server) -> str:
    durability = server.durability
    return "" if durability is None or durability.progress() is None else f"recovering from {durability}"
