"""`satrap shard`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import click

from satrap.cli.options import debug_option

STOP_SECONDS = 10.0
"""For a shard to end after its input did."""


@click.command()
@click.option(
    "--listen", required=True, metavar="HOST:PORT", help="Where to listen; port 0 takes a free one."
)
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The cluster's key, mode 0600; needed unless HOST is a loopback address.",
)
@click.option(
    "--stop-at-eof", is_flag=True, help="Stop when standard input ends; for programs that start it."
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve OpenMetrics there over HTTP, open to all who reach it; port 0 takes a free one.",
)
@debug_option
def shard(listen: str, key: Path | None, stop_at_eof: bool, metrics: str | None) -> None:
    """Serve one shard of the embedding tables until SIGTERM or Ctrl-C.

    The first worker that connects says which tables there are. One line on standard output tells the address
    once it is ready.
    """
    from satrap.exchange.servers.serve import serve

    if stop_at_eof:
        threading.Thread(target=_stop_at_eof, name="satrap-input", daemon=True).start()
    serve(listen, key_file=key, metrics=metrics)


def _stop_at_eof() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(STOP_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
