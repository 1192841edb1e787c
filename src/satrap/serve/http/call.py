"""Minimal ASGI request and response for the busiest routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from satrap.serve.http.errors import RequestError

T = TypeVar("T")

WATCH_SECONDS = 0.02
"""A request that waits longer for its answer is cancelled if its client disconnects."""

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class ClientGoneError(Exception):
    """The client has closed the connection."""


class AsgiCall:
    """A request of an ASGI server.

    Starlette's routing, request and response cost as much processor time as the rest of HTTP, so the busiest
    routes do not use them.

    Args:
        scope: the scope of ASGI.
        receive: the function of ASGI that receives messages.

    Attributes:
        receive: the argument.
        begun: time by `perf_counter` when the body was complete; until then, when the request arrived.
        params: path parameters from Starlette; empty if Starlette did not route the request.
    """

    __slots__ = ("_headers", "begun", "params", "receive")

    def __init__(self, scope: Any, receive: Receive) -> None:
        # If a name repeats, the first header counts.
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        self.receive, self.begun = receive, perf_counter()
        self.params: dict[str, str] = scope.get("path_params", {})

    def header(self, name: bytes) -> str | None:
        """Return the header with a lowercase name; None if the request does not have it."""
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def body(self, most: int) -> bytes:
        """Return the body.

        Raises:
            RequestError: the body has more than `most` bytes.
            ClientGoneError: the client disconnected before the body was complete.
        """
        length = self._headers.get(b"content-length", b"")
        size = int(length) if length.isdigit() and len(length) < 20 else 0
        parts: list[bytes] = []
        size_read, more = 0, True
        while more and max(size, size_read) <= most:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientGoneError
            part = message.get("body", b"")
            parts.append(part)
            size_read, more = size_read + len(part), message.get("more_body", False)
        if max(size, size_read) > most:
            raise RequestError(
                413,
                f"the body has more than {most:,} bytes",
                fix="send several requests, or raise serving.max_bytes",
                headers={"Connection": "close"},
            )
        self.begun = perf_counter()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def unless_gone(self, answer: asyncio.Future[T]) -> T:
        """Return the answer; if the client disconnects first, cancel it and raise `ClientGoneError`."""
        gone: list[asyncio.Future[Any]] = []

        def watch() -> None:
            gone.append(asyncio.ensure_future(self.receive()))
            gone[0].add_done_callback(lambda _: answer.cancel())

        # Nearly every answer comes sooner, so a task that watches the connection would be wasted.
        timer = answer.get_loop().call_later(WATCH_SECONDS, watch)
        try:
            return await answer
        except asyncio.CancelledError:
            if gone and gone[0].done() and not gone[0].cancelled():
                raise ClientGoneError from None
            raise
        finally:
            timer.cancel()
            answer.cancel()
            for each in gone:
                each.cancel()


@dataclass(slots=True)
class Reply:
    """An answer.

    Args:
        body: the bytes of the body.
        kind: media type of the body.
        status: HTTP status.
        headers: additional headers, with lowercase names.
        after: awaited once the answer has been passed to the connection; None: nothing to await.
    """

    body: bytes
    kind: str
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()
    after: Callable[[], Awaitable[None]] | None = field(default=None)

    async def send(self, send: Send) -> None:
        """Send the answer."""
        first = ((b"content-length", b"%d" % len(self.body)), (b"content-type", self.kind.encode("latin-1")))
        await send({"type": "http.response.start", "status": self.status, "headers": [*first, *self.headers]})
        await send({"type": "http.response.body", "body": self.body})
        if self.after is not None:
            await self.after()


def header(name: str, value: str) -> tuple[bytes, bytes]:
    """Return a header in the form of ASGI: lowercase name and value, as bytes."""
    return name.lower().encode("latin-1"), value.encode("latin-1")
