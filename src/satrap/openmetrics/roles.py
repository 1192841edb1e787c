"""Turns the counters of a role into the values of its metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from satrap.errors import ConfigError
from satrap.openmetrics.endpoint import Endpoint
from satrap.rpc import split_address
from satrap.rpc.server.server import Server

Values = dict[str, Any]


def worker_values(rank: int, progress: Mapping[str, Any], traffic: Mapping[str, Any]) -> Values:
    """Return the metrics of a worker from the fields of its `Progress` and the traffic of its exchange."""
    plain = {
        "satrap_worker_steps": progress["step"],
        "satrap_worker_refused_steps": progress["refused"],
        "satrap_worker_samples": progress["samples"],
        "satrap_worker_epoch": progress["epoch"],
        "satrap_worker_loss": progress["loss"],
        "satrap_worker_lookups_in_flight": traffic["lookups"]["in_flight"],
        "satrap_worker_pushes_in_flight": traffic["pushes"]["in_flight"],
        "satrap_worker_waiting_requests": traffic["waiting"],
        "satrap_worker_resent_requests": traffic["resent"],
        "satrap_worker_sent_bytes": traffic["sent"],
        "satrap_worker_received_bytes": traffic["received"],
        "satrap_worker_ready_batches": progress["batches_ready"],
        "satrap_worker_distinct_ids_ratio": progress["distinct_ratio"],
    }
    return {
        "satrap_role": {"role": "worker", "index": str(rank)},
        **{name: value for name, value in plain.items() if not math.isnan(value)},
        "satrap_worker_stage_seconds": progress["stage_seconds"],
        "satrap_worker_staleness_updates": {whose: traffic[whose] for whose in ("own", "others")},
        "satrap_worker_lookup_seconds": (traffic["lookups"]["count"], traffic["lookups"]["seconds"]),
        "satrap_worker_push_seconds": (traffic["pushes"]["count"], traffic["pushes"]["seconds"]),
    }


def shard_values(statistics: Mapping[str, Any]) -> Values:
    """Return the metrics of a shard server."""
    server, tables = statistics["server"], statistics.get("tables", {}).values()
    tier = Counter(statistics.get("tier", {}))  # 0 without a tier
    return {
        "satrap_role": {"role": "shard", "index": server["shard"]},
        "satrap_shard_rows": statistics.get("rows", 0),
        "satrap_shard_memory_bytes": statistics.get("bytes", 0),
        "satrap_shard_created_rows": sum(table["created"] for table in tables),
        "satrap_shard_evicted_rows": sum(table["evicted"] for table in tables),
        "satrap_shard_requests": server["requests"],
        "satrap_shard_refused_requests": server["refused"],
        "satrap_shard_repeated_requests": server["repeated"],
        "satrap_shard_malformed_messages": server["malformed"],
        "satrap_shard_busy_seconds": server["busy_seconds"],
        "satrap_shard_queued_requests": server["queued"],
        "satrap_shard_queued_bytes": server["queued_bytes"],
        "satrap_shard_clients": server["clients"],
        "satrap_shard_received_bytes": server["received_bytes"],
        "satrap_shard_sent_bytes": server["sent_bytes"],
        "satrap_shard_completed_steps": server["steps"],
        "satrap_shard_tier_rows": tier["rows"],
        "satrap_shard_tier_bytes": tier["bytes"],
        "satrap_shard_tier_read_rows": tier["reads"],
        "satrap_shard_tier_written_rows": tier["writes"],
        "satrap_shard_tier_prefetched_rows": tier["prefetched"],
        "satrap_shard_tier_prefetch_hits": tier["prefetch_hits"],
    }


def loader_values(statistics: Mapping[str, Any]) -> Values:
    """Return the metrics of a loader."""
    server = statistics["server"]
    return {
        "satrap_role": {"role": "loader", "index": ""},
        "satrap_loader_passes": statistics["streams"],
        "satrap_loader_ready_batches": statistics["ready"],
        "satrap_loader_batches": statistics["batches"],
        "satrap_loader_samples": statistics["samples"],
        "satrap_loader_busy_seconds": server["busy_seconds"],
        "satrap_loader_queued_requests": server["queued"],
        "satrap_loader_sent_bytes": server["sent_bytes"],
    }


def embedding_worker_values(statistics: Mapping[str, Any]) -> Values:
    """Return the metrics of an embedding worker."""
    server = statistics["server"]
    return {
        "satrap_role": {"role": "embedding-worker", "index": ""},
        "satrap_embedding_worker_workers": statistics["workers"],
        "satrap_embedding_worker_open_lookups": statistics["open"],
        "satrap_embedding_worker_samples": statistics["samples"],
        "satrap_embedding_worker_busy_seconds": server["busy_seconds"],
        "satrap_embedding_worker_queued_requests": server["queued"],
        "satrap_embedding_worker_refused_requests": server["refused"],
        "satrap_embedding_worker_received_bytes": server["received_bytes"],
        "satrap_embedding_worker_sent_bytes": server["sent_bytes"],
    }


_VALUES = {"shard": shard_values, "embedding-worker": embedding_worker_values, "loader": loader_values}
"""Role of a server -> what turns its statistics into values."""


def metrics_of(server: Server, address: str | None) -> Endpoint | None:
    """Return the endpoint of a server's metrics at HOST:PORT, or None; a line on standard output names it.

    If the address cannot be used, it stops the server and raises `ConfigError`.
    """
    if address is None:
        return None
    role = server.handler.role
    try:
        host, port = split_address(address)
        endpoint = Endpoint(host, port, lambda: _VALUES[role](server.statistics()))
    except ConfigError:
        server.stop()
        raise
    print(f"satrap {role} metrics on http://{endpoint.address}/metrics", flush=True)
    return endpoint
