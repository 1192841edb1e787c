"""Connections send what HTTP says, and whatever a server answers becomes an answer or one error."""

from __future__ import annotations

import asyncio

import pytest

from satrap.errors import ConfigError
from satrap.serve.loadtest.connection import HttpReply, TargetServer
from tests.serve.loadtest.stranger import Said, stranger


def asked(url: str, *bodies: bytes) -> list[HttpReply]:
    """Return the answers to some requests over one connection."""

    async def ask() -> list[HttpReply]:
        target = TargetServer.of(url, {"Authorization": "Bearer secret"})
        connection = await target.connect()
        found = [await connection.ask(target.post("/v1/score", body)) for body in bodies]
        connection.close()
        return found

    return asyncio.run(ask())


def test_several_requests_go_over_one_connection() -> None:
    def answer(number: int, path: str, body: bytes) -> Said:
        return Said(200 + number, path.encode() + body * 50_000, {"Satrap-Step": str(number)})

    with stranger(answer) as url:
        first, second = asked(f"{url}/below", b"one", b"two")
    assert (first.status, second.status) == (200, 201)
    assert second.body == b"/below/v1/score" + b"two" * 50_000
    assert second.headers["satrap-step"] == "1"


def test_an_answer_in_chunks() -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    with stranger(lambda *_: Said(raw=raw)) as url:
        assert asked(url, b"")[0].body == b"abcde"


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"])
def test_what_is_no_answer_is_a_lost_connection(raw: bytes) -> None:
    with stranger(lambda *_: Said(raw=raw)) as url, pytest.raises(ConnectionError):
        asked(url, b"")


def test_urls() -> None:
    assert TargetServer.of("https://models.example/a/") == TargetServer("models.example", 443, True, "/a")
    assert TargetServer.of("http://[::1]:81") == TargetServer("::1", 81)
    assert b"\r\nHost: [::1]:81\r\n" in TargetServer("::1", 81).post("/x", b"")
    for url in ("http://", "http://host:port", "http://host:99999"):
        with pytest.raises(ConfigError, match="is not a server URL"):
            TargetServer.of(url)
