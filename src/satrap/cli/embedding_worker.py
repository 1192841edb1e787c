"""`satrap embedding-worker`."""

from __future__ import annotations

from pathlib import Path

import click

from satrap.cli.options import debug_option, server_options
from satrap.events import Report


@click.command("embedding-worker")
@click.option(
    "--shards",
    required=True,
    metavar="HOST:PORT,...",
    help="Addresses of all shard servers, in the order that the workers use.",
)
@server_options
@debug_option
def embedding_worker(shards: str, listen: str, key: Path | None, report: Report, metrics: str | None) -> None:
    """Look up and pool rows for workers until SIGTERM or Ctrl-C.

    A worker first sends its features and tables, then the ids of each batch, and gets pooled tensors.
    When the embedding worker is ready, it prints its address in one line.
    """
    from satrap.launch.embedding_worker import serve_embeddings

    serve_embeddings(listen, shards.split(","), key_file=key, metrics=metrics, report=report)
