"""A real S3-compatible server in a process of its own, behind a proxy that can take it off the network."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Line:
    """A TCP proxy to the server; `cut` is a server that died, `mend` one that is back with its data.

    Args:
        port: of the server.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._open: list[socket.socket] = []
        self._front = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._front.getsockname()[1]
        self.cut_after: int | None = None  # bytes sent to the server until the line is cut
        self._listen()

    def _listen(self) -> None:
        threading.Thread(target=self._accept, args=(self._front,), daemon=True).start()

    def _accept(self, front: socket.socket) -> None:
        while True:
            try:
                client, _ = front.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:
                return
            self._open += [client, server]
            for source, target, counted in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._carry, args=(source, target, counted), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if counted and self.cut_after is not None:
                    self.cut_after -= len(data)
                    if self.cut_after < 0:
                        self.cut()
                        return
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Break all connections and refuse new ones."""
        with suppress(OSError):
            self._front.shutdown(socket.SHUT_RDWR)
        self._front.close()
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open.clear()

    def mend(self) -> None:
        """Accept connections again, at the same port."""
        self.cut_after = None
        self._front = socket.create_server(("127.0.0.1", self.port))
        self._listen()


@contextmanager
def server() -> Iterator[int]:
    """Start moto's server; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = [
        sys.executable,
        "-c",
        "from moto.server import main; main()",
        "-H",
        "127.0.0.1",
        "-p",
        str(port),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, "the server ended"
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()
