"""`satrap embedding-worker`."""

from pathlib import Path

import click

from satrap.cli.options import debug_option, server_options
from satrap.runtime.events import Report


@click.command("embedding-worker")
@click.option(
    "--shards",
    required=True,
    metavar="HOST:PORT,...",
    help="Addresses of all shard servers, in the same order as for the workers.",
)
@server_options
@debug_option
def embedding_worker(shards: str, listen: str, key: Path | None, report: Report, metrics: str | None) -> None:
    """Look up and pool rows for workers until SIGTERM or Ctrl-C.

    A worker sends its features and tables once, then the ids of each batch, and receives pooled tensors. When
    the embedding worker is ready, it prints its address on one line.
    """
    import torch

    from satrap.embedding.workers import ClientThreads, EmbeddingService
    from satrap.openmetrics import embedding_worker_values, metrics_of
    from satrap.rpc import read_key, split_address
    from satrap.rpc.server.process import serve
    from satrap.rpc.server.server import Server

    addresses = shards.split(",")
    for address in addresses:
        split_address(address)
    torch.set_num_threads(1)  # each worker's requests run on separate threads
    secret = read_key(key) if key else None
    service = EmbeddingService(addresses, secret)
    server = Server(listen, service, key=secret, dispatcher=ClientThreads)
    endpoint = metrics_of(server, lambda: embedding_worker_values(service.statistics()), metrics, report)
    serve(server, endpoint, report)
