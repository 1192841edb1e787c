"""What `satrap versions` asks with gets an answer, or one clear error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from satrap.errors import ConfigError
from satrap.serve.operator import ask
from tests.serve.served import Served


class Stranger(BaseHTTPRequestHandler):
    """Another program's server."""

    said: ClassVar[tuple[int, bytes]] = (200, b"")

    def do_GET(self) -> None:
        status, body = self.said
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ((200, b"<html>"), "does not answer"),
        ((500, b"<html>"), "status 500"),
        ((404, b'{"error": "no"}'), "status 404"),
    ],
)
def test_a_server_of_another_kind(said: tuple[int, bytes], match: str, stranger: str) -> None:
    Stranger.said = said
    with pytest.raises(ConfigError, match=match):
        ask(stranger, "", None, {})


def test_an_error_is_told_whole(server: Served) -> None:
    host, port = server.address
    with pytest.raises(ConfigError, match="does not follow a run") as caught:
        ask(f"{host}:{port}/", "pin", None, {})
    assert caught.value.fix == "start the server with satrap serve DIR --follow"
