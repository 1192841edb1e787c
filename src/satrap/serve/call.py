"""A request and its answer as ASGI has them: what a hot route needs, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from satrap.serve.errors import RequestError

T = TypeVar("T")

WATCH_SECONDS = 0.02
"""How long a request may wait for its answer before it is looked whether its client is still there."""

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class ClientGoneError(Exception):
    """The client has closed the connection."""


class Call:
    """A request of an ASGI server.

    Starlette's routing, request and response cost as much processor time as all the rest of HTTP, so routes
    that are asked all the time do without them.

    Args:
        scope: of ASGI.
        receive: of ASGI.

    Attributes:
        receive: of the argument.
        begun: when the body was there, on the clock of `perf_counter`; before, when the request came.
        params: what starlette has found in the path; empty if it was not asked.
    """

    __slots__ = ("_headers", "begun", "params", "receive")

    def __init__(self, scope: Any, receive: Receive) -> None:
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # the first of a name counts
        self.receive, self.begun = receive, perf_counter()
        self.params: dict[str, str] = scope.get("path_params", {})

    def header(self, name: bytes) -> str | None:
        """Return the header of a name in small letters; None: there is none."""
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def body(self, most: int) -> bytes:
        """Return the body.

        Raises:
            RequestError: it has more than `most` bytes.
            ClientGoneError: the client left before it was complete.
        """
        length = self._headers.get(b"content-length", b"")
        size = int(length) if length.isdigit() and len(length) < 20 else 0
        parts: list[bytes] = []
        got, more = 0, True
        while more and max(size, got) <= most:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientGoneError
            part = message.get("body", b"")
            parts.append(part)
            got, more = got + len(part), message.get("more_body", False)
        if max(size, got) > most:
            raise RequestError(
                413,
                f"the body has more than {most:,} bytes",
                fix="send several requests, or raise serving.max_bytes",
                headers={"Connection": "close"},
            )
        self.begun = perf_counter()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def unless_gone(self, answer: asyncio.Future[T]) -> T:
        """Return the answer; if the client leaves before, cancel it and raise `ClientGoneError`."""
        gone: list[asyncio.Future[Any]] = []

        def watch() -> None:
            gone.append(asyncio.ensure_future(self.receive()))
            gone[0].add_done_callback(lambda _: answer.cancel())

        # Nearly always the answer is there before: it is not worth a task that watches the connection.
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
        body: of the answer.
        kind: media type of the body.
        status: of HTTP.
        headers: further ones, names in small letters.
        after: is awaited once the answer was handed to the connection; None: nothing is.
    """

    body: bytes
    kind: str
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()
    after: Callable[[], Awaitable[None]] | None = field(default=None)

    async def send(self, send: Send) -> None:
        """Send it."""
        own = ((b"content-length", b"%d" % len(self.body)), (b"content-type", self.kind.encode("latin-1")))
        await send({"type": "http.response.start", "status": self.status, "headers": [*own, *self.headers]})
        await send({"type": "http.response.body", "body": self.body})
        if self.after is not None:
            await self.after()


def header(name: str, value: str) -> tuple[bytes, bytes]:
    """Return a header as ASGI has it."""
    return name.lower().encode("latin-1"), value.encode("latin-1")
