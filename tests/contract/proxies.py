"""Networks that misbehave on purpose: one that loses and doubles messages, one that cuts connections."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from types import TracebackType

import zmq


class MessageProxy:
    """Forwards messages of one client to a server, drops some, doubles some, holds some back.

    Args:
        upstream: HOST:PORT of the server.
        seed: of the faults.
        fault: probability of each of them, per message.
    """

    def __init__(self, upstream: str, *, seed: int, fault: float) -> None:
        self.faults = 0
        self._rng, self._fault = random.Random(seed), fault
        self._context = zmq.Context()
        self._front = self._context.socket(zmq.ROUTER)
        self.address = f"127.0.0.1:{self._front.bind_to_random_port('tcp://127.0.0.1')}"
        self._back = self._context.socket(zmq.DEALER)
        self._back.connect(f"tcp://{upstream}")
        self._held: list[tuple[float, zmq.Socket[bytes], list[bytes]]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> MessageProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._context.destroy(0)

    def _run(self) -> None:
        poller, identity = zmq.Poller(), b""
        poller.register(self._front, zmq.POLLIN)
        poller.register(self._back, zmq.POLLIN)
        while not self._stopping.is_set():
            for source, _ in poller.poll(5):
                if source is self._front:
                    identity, *message = self._front.recv_multipart()
                    self._forward(self._back, message)
                else:
                    self._forward(self._front, [identity, *self._back.recv_multipart()])
            now = time.monotonic()
            for entry in [h for h in self._held if h[0] <= now]:
                self._held.remove(entry)
                entry[1].send_multipart(entry[2])

    def _forward(self, target: zmq.Socket[bytes], message: list[bytes]) -> None:
        roll = self._rng.random() / self._fault if self._fault else 9.0
        self.faults += roll < 3
        if roll < 1:
            return
        if roll < 2:
            target.send_multipart(message)
        if roll < 3:  # later, behind others: a delay and a change of order
            self._held.append((time.monotonic() + self._rng.random() * 0.02, target, message))
        else:
            target.send_multipart(message)


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
