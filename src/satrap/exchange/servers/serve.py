"""The process of a shard server: `python -m satrap.exchange.servers.serve 127.0.0.1:5000`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

from satrap.errors import ConfigError, SatrapError
from satrap.events import Ready, Recovering, Report
from satrap.exchange.servers.server import ShardServer
from satrap.exchange.servers.service import Service
from satrap.exchange.servers.sessions import Limits
from satrap.exchange.servers.turns import Turns
from satrap.memory import keep_freed_memory
from satrap.openmetrics import SERVER_VALUES, Endpoint
from satrap.rpc import read_key, split_address


def serve(
    listen: str,
    *,
    key_file: Path | None = None,
    limits: Limits | None = None,
    metrics: str | None = None,
    service: Service | None = None,
    journal: Path | None = None,
    turns: Callable[..., Turns] = Turns,
    report: Report = lambda _: None,
) -> None:
    """Serve one shard until SIGTERM or SIGINT; prints one line when it is ready.

    If it comes back from a journal, it first prints from what, and clients wait until it has.

    Args:
        listen: HOST:PORT; port 0 takes a free one, which the line names.
        key_file: of the cluster's key, see `read_key`. Needed for any address that others can reach.
        limits: see `Limits`.
        metrics: HOST:PORT of an OpenMetrics endpoint, which a line before names; None: none.
        service: what executes the requests, default one with a store.
        journal: folder, see `ShardServer`.
        turns: what decides when requests are executed, see `ShardServer`.
        report: called with `Recovering` and `Ready`, as the lines are printed.

    Raises:
        ConfigError: an address, key or journal that cannot be used.
        CheckpointError: the journal is damaged.
        ExchangeError: the thread that executes requests has died.
    """
    key = read_key(key_file) if key_file else None
    keep_freed_memory()
    service = service or Service()
    server = ShardServer(listen, key=key, limits=limits, service=service, journal=journal, turns=turns)

    def stop(_: int, __: FrameType | None) -> None:
        server.request_stop()

    endpoint = _endpoint(server, service.role, metrics) if metrics else nullcontext()
    before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        if server.recovery is not None and server.recovery.active:
            print(f"satrap shard recovering from {server.recovery}", flush=True)
            report(Recovering(str(server.recovery)))
        protection = "encrypted" if key else "open to this machine only"
        with endpoint:
            print(f"satrap {service.role} ready on {server.address} ({protection})", flush=True)
            report(Ready(server.address))
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
