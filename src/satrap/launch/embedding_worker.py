"""The process of an embedding worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from satrap.embedding.workers import EmbeddingService, Lanes
from satrap.events import Report
from satrap.openmetrics import metrics_of
from satrap.rpc import read_key, split_address
from satrap.rpc.server.process import serve
from satrap.rpc.server.server import Server


def serve_embeddings(
    listen: str,
    shards: Sequence[str],
    *,
    key_file: Path | None = None,
    metrics: str | None = None,
    report: Report = lambda _: None,
) -> None:
    """Look up and pool rows for workers until SIGTERM or SIGINT; prints one line when it is ready.

    Args:
        listen: HOST:PORT; port 0 takes a free one, which the line names.
        shards: HOST:PORT of each shard.
        key_file: of the cluster's key; needed for any address that others can reach.
        metrics: HOST:PORT of an OpenMetrics endpoint; None: none.
        report: called with `Ready`.

    Raises:
        ConfigError: an address or key that cannot be used.
    """
    for address in shards:
        split_address(address)
    torch.set_num_threads(1)  # each worker's requests have threads of their own
    key = read_key(key_file) if key_file else None
    server = Server(listen, EmbeddingService(shards, key), key=key, dispatcher=Lanes)
    serve(server, metrics_of(server, metrics), report)
