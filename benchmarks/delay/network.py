"""Shard processes a few milliseconds away."""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import threading
import time


class Network:
    """Shard processes, each behind a delaying process.

    Args:
        shards: number of shards.
        delay: milliseconds each way; 0: no delaying process.

    Attributes:
        addresses: the addresses for clients.
        shards: their process ids.
    """

    def __init__(self, shards: int, delay: float) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        served = [
            self._start("satrap.cli", "shard", "--listen", "127.0.0.1:0").split()[4] for _ in range(shards)
        ]
        self.shards = [process.pid for process in self._processes]
        self.addresses = served
        if delay:
            self.addresses = [self._start("benchmarks.delay.proxy", a, str(delay)).strip() for a in served]

    def _start(self, module: str, *arguments: str) -> str:
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        assert process.stdout is not None
        return process.stdout.readline()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(20)


def round_trip(delay: float) -> float:
    """Return the median round trip of a byte through the delay in milliseconds, echoed at once."""

    def echo() -> None:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(1):
                connection.sendall(data)

    times, command = [], [sys.executable, "-m", "benchmarks.delay.proxy"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo, daemon=True).start()
        command += [f"127.0.0.1:{listener.getsockname()[1]}", str(delay)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
            assert proxy.stdout is not None
            host, _, port = proxy.stdout.readline().strip().rpartition(":")
            with socket.create_connection((host, int(port))) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for _ in range(20):
                    start = time.perf_counter()
                    connection.sendall(b"x")
                    connection.recv(1)
                    times.append(time.perf_counter() - start)
            proxy.kill()
    return 1000 * statistics.median(times)
