"""Checks of loopback and of the machine's name."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Iterator

from satrap.tools.doctor.finding import Finding

TURNS = 50
SLOW_SECONDS = 2e-3
"""A slower round trip is suspicious; a normal one through loopback takes some 20 microseconds."""


def network() -> Iterator[Finding]:
    """Yield the findings about the network."""
    yield loopback()
    yield name()


def loopback() -> Finding:
    """Measure a round trip through loopback, which processes on one machine need."""
    try:
        middle = statistics.median(_round_trips())
    except OSError as error:
        return Finding(
            "loopback",
            "error",
            f"no connection through 127.0.0.1: {error}",
            "allow connections through loopback, or use cluster.exchange: local",
        )
    summary = f"a port can be opened; a round trip takes {1e6 * middle:.0f} microseconds"
    if middle > SLOW_SECONDS:
        return Finding("loopback", "warning", f"{summary}: slow", "look for a firewall, a proxy or high load")
    return Finding("loopback", "ok", summary)


def _round_trips() -> list[float]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        thread = threading.Thread(target=_echo, args=(server,), daemon=True)
        thread.start()
        with socket.create_connection(server.getsockname(), timeout=5) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times = []
            for _ in range(TURNS):
                start = time.perf_counter()
                client.sendall(b"x")
                if not client.recv(1):
                    raise OSError("the connection was closed")
                times.append(time.perf_counter() - start)
        thread.join(5)
    return times


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(1):
            connection.sendall(data)


def name() -> Finding:
    """Check that the machine's name resolves, which only runs on several machines need."""
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError as error:
        summary = f"the name does not resolve: {error}; this matters only for several machines"
        return Finding("machine's name", "warning", summary, "add the name to /etc/hosts")
    return Finding("machine's name", "ok", "the name resolves")
