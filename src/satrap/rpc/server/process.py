"""Runs a server as a process."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager, nullcontext
from types import FrameType

from satrap.rpc.server.server import Server
from satrap.runtime.events import Ready, Recovering, Report
from satrap.runtime.malloc import keep_freed_memory


def serve(
    server: Server,
    endpoint: AbstractContextManager[object] | None = None,
    report: Report = lambda _: None,
) -> None:
    """Serve until SIGTERM or SIGINT; print one line when the server is ready.

    If the server recovers, a line before that names the source; clients wait until it has recovered.

    Args:
        server: not started yet.
        endpoint: open while the server runs, for example for metrics.
        report: called with `Recovering` and `Ready`, when the lines are printed.

    Raises:
        CheckpointError: the journal is damaged.
        ExchangeError: the thread that executes requests has died.
    """

    def stop(_: int, __: FrameType | None) -> None:
        server.request_stop()

    keep_freed_memory()
    role, durability = server.handler.role, server.durability
    before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        if durability is not None and durability.progress() is not None:
            print(f"satrap {role} recovering from {durability}", flush=True)
            report(Recovering(str(durability)))
        protection = "encrypted" if server.encrypted else "open to this machine only"
        with endpoint or nullcontext():
            print(f"satrap {role} ready on {server.address} ({protection})", flush=True)
            report(Ready(server.address))
            server.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
