"""`satrap shard`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import click

from satrap.cli.options import debug_option, server_options

STOP_SECONDS = 10.0
"""Time for a process to end after its standard input did."""


@click.command()
@server_options
@click.option(
    "--journal",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write every request there before executing it; a shard started again repeats them.",
)
@debug_option
def shard(
    listen: str, key: Path | None, journal: Path | None, stop_at_eof: bool, metrics: str | None
) -> None:
    """Serve one shard of the embedding tables until SIGTERM or Ctrl-C.

    The first worker that connects defines the tables. When the shard is ready, it prints its address in one
    line.
    """
    from satrap.exchange.servers.serve import serve

    if stop_at_eof:
        end_with_input()
    serve(listen, key_file=key, journal=journal, metrics=metrics)


def end_with_input() -> None:
    """Stop this process by SIGTERM when its standard input ends, and kill it if that takes too long."""
    threading.Thread(target=_stop_at_eof, name="satrap-input", daemon=True).start()


def _stop_at_eof() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(STOP_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
