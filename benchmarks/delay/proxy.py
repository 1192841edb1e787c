"""A network with delay, in user space.

`python -m benchmarks.delay.proxy HOST:PORT MILLISECONDS` prints its address. Every byte is forwarded
unchanged, in order, a fixed time after its arrival, in both directions; bandwidth is not limited.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from queue import SimpleQueue

CHUNK = 1 << 18


def deliver(target: socket.socket, coming: SimpleQueue[tuple[float, bytes]]) -> None:
    """Send each chunk at its due time; an empty chunk ends the connection."""
    with contextlib.suppress(OSError):
        while True:
            due, data = coming.get()
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            if not data:
                break
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def pump(source: socket.socket, target: socket.socket, delay: float) -> None:
    """Record the arrival time of each chunk."""
    coming: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
    threading.Thread(target=deliver, args=(target, coming), daemon=True).start()
    data = b"first"
    while data:
        try:
            data = source.recv(CHUNK)
        except OSError:
            data = b""
        coming.put((time.monotonic() + delay, data))


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    delay = float(sys.argv[2]) / 1000
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((host, int(port)))
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=pump, args=(source, target, delay), daemon=True).start()


if __name__ == "__main__":
    main()
