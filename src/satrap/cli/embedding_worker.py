"""`satrap embedding-worker`."""

from __future__ import annotations

from pathlib import Path

import click

from satrap.cli.options import debug_option, server_options
from satrap.cli.shard import end_with_input


@click.command("embedding-worker")
@click.option(
    "--shards",
    required=True,
    metavar="HOST:PORT,...",
    help="The shard servers, in the order of their numbers, as the workers have them.",
)
@server_options
@debug_option
def embedding_worker(
    shards: str, listen: str, key: Path | None, stop_at_eof: bool, metrics: str | None
) -> None:
    """Look up and pool rows for workers until SIGTERM or Ctrl-C.

    Stands between workers and shards: takes the ids of their batches and answers dense tensors. The first
    message of a worker tells features and tables. One line on standard output tells the address once it is
    ready.
    """
    from satrap.launch.embedding_worker import serve_embeddings

    if stop_at_eof:
        end_with_input()
    serve_embeddings(listen, shards.split(","), key_file=key, metrics=metrics)
