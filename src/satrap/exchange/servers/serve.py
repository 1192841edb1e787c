"""The process of a shard server: `python -m satrap.exchange.servers.serve 127.0.0.1:5000`."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

from satrap.errors import ConfigError, SatrapError
from satrap.exchange.servers.security import read_key, split_address
from satrap.exchange.servers.server import Limits, ShardServer
from satrap.exchange.servers.service import Service
from satrap.memory import keep_freed_memory
from satrap.openmetrics import SERVER_VALUES, Endpoint


def serve(
    listen: str,
    *,
    key_file: Path | None = None,
    limits: Limits | None = None,
    metrics: str | None = None,
    service: Service | None = None,
) -> None:
    """Serve one shard until SIGTERM or SIGINT; prints one line when it is ready.

    Args:
        listen: HOST:PORT; port 0 takes a free one, which the line names.
        key_file: of the cluster's key, mode 0600. Needed for any address that others can reach.
        limits: see `Limits`.
        metrics: HOST:PORT of an OpenMetrics endpoint, which a line before names; None: none.
        service: what executes the requests, default one with a store.

    Raises:
        ConfigError: an address or key that cannot be used.
        ExchangeError: the thread that executes requests has died.
    """
    key = read_key(key_file) if key_file else None
    keep_freed_memory()
    service = service or Service()
    server = ShardServer(listen, key=key, limits=limits, service=service)

    def stop(_: int, __: FrameType | None) -> None:
        server.request_stop()

    endpoint = _endpoint(server, service.role, metrics) if metrics else nullcontext()
    before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        protection = "encrypted" if key else "open to this machine only"
        with endpoint:
            print(f"satrap {service.role} ready on {server.address} ({protection})", flush=True)
            server.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _endpoint(server: ShardServer, role: str, metrics: str) -> Endpoint:
    try:
        host, port = split_address(metrics)
        endpoint = Endpoint(host, port, lambda: SERVER_VALUES[role](server.statistics()))
    except ConfigError:
        server.stop()
        raise
    print(f"satrap {role} metrics on http://{endpoint.address}/metrics", flush=True)
    return endpoint


def main() -> int:
    """Read the command line and serve; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m satrap.exchange.servers.serve")
    parser.add_argument("listen", help="HOST:PORT")
    parser.add_argument("--key-file", type=Path)
    arguments = parser.parse_args()
    try:
        serve(arguments.listen, key_file=arguments.key_file)
    except SatrapError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
