"""Networks that misbehave on purpose: one that loses and doubles messages, one that cuts connections."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import threading
import time

from tests.rpc import plain


class MessageProxy:
    """Forwards messages of one client to a server, drops some, doubles some, holds some back.

    When either connection breaks, so does the other; the client then makes a new one.

    Args:
        upstream: HOST:PORT of the server.
        seed: of the faults.
        fault: probability of each of them, per message.
    """

    def __init__(self, upstream: str, *, seed: int, fault: float) -> None:
        self.faults = 0
        self._rng, self._fault = random.Random(seed), fault
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._held: list[tuple[float, socket.socket, list[bytes]]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> MessageProxy:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not select.select([self._listener], [], [], 0.01)[0]:
                continue
            front, _ = self._listener.accept()
            with front, contextlib.suppress(OSError), socket.create_connection(self._upstream) as back:
                self._join(front, back)
            self._held.clear()

    def _join(self, front: socket.socket, back: socket.socket) -> None:
        while not self._stopping.is_set():
            for source in select.select([front, back, self._listener], [], [], 0.005)[0]:
                if source is self._listener:  # the client has given up this connection
                    return
                self._forward(back if source is front else front, plain.receive(source))
            now = time.monotonic()
            for entry in [h for h in self._held if h[0] <= now]:
                self._held.remove(entry)
                plain.send(*entry[1:])

    def _forward(self, target: socket.socket, message: list[bytes]) -> None:
        roll = self._rng.random() / self._fault if self._fault else 9.0
        self.faults += roll < 3
        if roll < 1:
            return
        if roll < 2:
            plain.send(target, message)
        if roll < 3:  # later, behind others: a delay and a change of order
            self._held.append((time.monotonic() + self._rng.random() * 0.02, target, message))
        else:
            plain.send(target, message)


class CuttingProxy:
    """Forwards bytes, and closes all connections whenever told to.

    Args:
        upstream: HOST:PORT of the server.
    """

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._upstream)
            except OSError:
                return
            self.connections += 1
            self._open += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)

    def cut(self) -> None:
        """Close every connection, in the middle of whatever goes through."""
        opened, self._open = self._open, []
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
