"""Minimal HTTP/1.1 connections for a client that sends many requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import httptools

from satrap.errors import ConfigError

CONNECT_SECONDS = 10.0
"""Time limit for a connection attempt."""


@dataclass(slots=True)
class HttpReply:
    """An answer.

    Args:
        status: of HTTP.
        headers: lower-case name -> value.
        body: body of the answer.
    """

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class HttpConnection(asyncio.Protocol):
    """A connection with one request at a time; made by `TargetServer.connect`."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._parser = httptools.HttpResponseParser(self)
        self._reply = HttpReply(0)
        self._answer: asyncio.Future[HttpReply] | None = None

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, request: bytes) -> asyncio.Future[HttpReply]:
        """Send a request; the future returns its answer or raises `ConnectionError`."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """Close the connection now; a pending answer raises `ConnectionError`."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(str(exc or "the server closed the connection")))

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def on_message_begin(self) -> None:
        """Begin an answer."""
        self._reply = HttpReply(0)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header to the answer."""
        self._reply.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Add a part of the body to the answer."""
        self._reply.body += body

    def on_message_complete(self) -> None:
        """Complete the future with the answer."""
        self._reply.status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self._transport.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._reply)


@dataclass(frozen=True, slots=True)
class TargetServer:
    """A server.

    Args:
        host, port: address of the server.
        tls: whether connections are encrypted.
        prefix: prefix of all paths.
        headers: headers of each request.
    """

    host: str
    port: int
    tls: bool = False
    prefix: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str] | None = None) -> Self:
        """Return the server of a URL such as http://127.0.0.1:8000; raise `ConfigError` if it is invalid."""
        parts, port = urlsplit(url), None
        with suppress(ValueError):  # the port is not valid
            port = parts.port or (443 if parts.scheme == "https" else 80)
        if not parts.hostname or port is None:
            raise ConfigError(f"{url!r} is not a server URL", fix="give a URL such as http://127.0.0.1:8000")
        prefix = parts.path.rstrip("/")
        return cls(parts.hostname, port, parts.scheme == "https", prefix, dict(headers or {}))

    def post(self, path: str, body: bytes, kind: str = "application/json") -> bytes:
        """Return the bytes of a POST request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"POST {self.prefix}{path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body

    async def connect(self) -> HttpConnection:
        """Return a new connection; raise `OSError` if it takes more than `CONNECT_SECONDS`."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS):
            _, connection = await loop.create_connection(
                HttpConnection, self.host, self.port, ssl=self.tls or None
            )
        return connection
