"""A server that answers as a test wants, in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Said:
    """An answer."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes = b""  # instead of all others


@contextmanager
def stranger(answer: Callable[[int, str, bytes], Said]) -> Iterator[str]:
    """Give the URL of a server that answers by a function of (number of the request, path, body)."""
    lock, count = threading.Lock(), 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet for each answer

        def do_POST(self) -> None:
            nonlocal count
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                number, count = count, count + 1
            said = answer(number, self.path, body)
            if said.raw:
                self.wfile.write(said.raw)
                self.close_connection = True
                return
            self.send_response(said.status)
            for name, value in {**said.headers, "Content-Length": str(len(said.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said.body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
