"""The process of a shard server: `python -m satrap.exchange.servers.serve 127.0.0.1:5000`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from satrap.errors import ConfigError, SatrapError
from satrap.events import Report
from satrap.exchange.servers.server import ShardServer
from satrap.openmetrics import metrics_of
from satrap.rpc import read_key
from satrap.rpc.server import process
from satrap.rpc.server.sessions import Limits


def serve(
    listen: str,
    *,
    key_file: Path | None = None,
    limits: Limits | None = None,
    metrics: str | None = None,
    journal: Path | None = None,
    report: Report = lambda _: None,
) -> None:
    """Serve one shard until SIGTERM or SIGINT; see `satrap.rpc.server.process.serve`.

    Args:
        listen: HOST:PORT; port 0 takes a free one, which a line names.
        key_file: of the cluster's key, see `read_key`. Needed for any address that others can reach.
        limits: see `Limits`.
        metrics: HOST:PORT of an OpenMetrics endpoint, which a line before names; None: none.
        journal: folder, see `ShardServer`.
        report: see `satrap.rpc.server.process.serve`.

    Raises:
        ConfigError: an address, key or journal that cannot be used.
        CheckpointError: the journal is damaged.
        ExchangeError: the thread that executes requests has died.
    """
    key = read_key(key_file) if key_file else None
    server = ShardServer(listen, key=key, limits=limits, journal=journal)
    process.serve(server, metrics_of(server, metrics), report)


def main() -> int:
    """Read the command line and serve; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m satrap.exchange.servers.serve")
    parser.add_argument("listen", help="HOST:PORT")
    parser.add_argument("--key-file", type=Path)
    parser.add_argument("--journal", type=Path)
    arguments = parser.parse_args()
    try:
        serve(arguments.listen, key_file=arguments.key_file, journal=arguments.journal)
    except SatrapError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
