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
"""For a shard to end after its input did."""


@click.command()
@server_options
@click.option(
    "--journal",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write every request there before it is executed, and come back from it after being killed.",
)
@debug_option
def shard(
    listen: str, key: Path | None, journal: Path | None, stop_at_eof: bool, metrics: str | None
) -> None:
    """Serve one shard of the embedding tables until SIGTERM or Ctrl-C.

    The first worker that connects says which tables there are. One line on standard output tells the address
    once it is ready.
    """
    from satrap.exchange.servers.serve import serve

    if stop_at_eof:
        end_with_input()
    serve(listen, key_file=key, journal=journal, metrics=metrics)


def end_with_input() -> None:
    """Ask this process to stop when its standard input ends; kill it if it does not."""
    threading.Thread(target=_stop_at_eof, name="satrap-input", daemon=True).start()


def _stop_at_eof() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(STOP_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
