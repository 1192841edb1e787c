"""Loopback and the machine's name."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Iterator

from satrap.doctor.finding import Finding

TURNS = 50
SLOW_SECONDS = 2e-3
"""A round trip through loopback takes some 20 microseconds; beyond this something is in the way."""


def network() -> Iterator[Finding]:
    """Yield what the checks of the network find."""
    yield loopback()
    yield name()


def loopback() -> Finding:
    """Say how long a message through loopback takes; processes of one machine need it."""
    try:
        middle = statistics.median(_round_trips())
    except OSError as error:
        return Finding(
            "loopback",
            "error",
            f"no connection through 127.0.0.1: {error}",
            "allow it, or use cluster.exchange: local",
        )
    found = f"a port can be opened; a round trip takes {1e6 * middle:.0f} microseconds"
    if middle > SLOW_SECONDS:
        return Finding(
            "loopback", "warning", f"{found}: slow", "look for a firewall or proxy, and at the load"
        )
    return Finding("loopback", "ok", found)


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
    """Say whether the machine's name leads to an address; only several machines need that."""
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError as error:
        found = f"it does not resolve: {error}; that matters for several machines only"
        return Finding("machine's name", "warning", found, "add it to /etc/hosts")
    return Finding("machine's name", "ok", "it resolves")
