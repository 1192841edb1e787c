"""A client of one server."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from satrap.errors import ExchangeError, SatrapError
from satrap.rpc import Key
from satrap.rpc.client.call import Call
from satrap.rpc.client.loop import ClientLoop, ClientNetwork
from satrap.rpc.client.peer import Peer
from satrap.rpc.wire.frames import Buffer, MessageKind
from satrap.rpc.wire.text import pack_hello


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of a client's connections to servers.

    Args:
        key: key of the cluster; needed to reach another machine.
        deadline: seconds without a response after which a server counts as lost, default 30.
        heartbeat: seconds of silence after which the client sends a PING, default 1.
        network: carries the messages; default `ClientLoop`, a thread with sockets.
    """

    key: Key | None = None
    deadline: float = 30.0
    heartbeat: float = 1.0
    network: Callable[..., ClientNetwork] = ClientLoop


class Client:
    """Sends requests to one server, which executes each once and in order; lost requests are sent again.

    Args:
        name: the server's name in errors, for example "loader 0".
        address: HOST:PORT.
        hello: content of the first message.
        options: key, deadline and heartbeat.

    Raises:
        ExchangeError: the server cannot be reached or rejects the key.
        ConfigError: the server rejects the hello.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        hello: Mapping[str, Any] | None = None,
        options: ClientOptions = ClientOptions(),
    ) -> None:
        self._calls: set[Call[Sequence[Buffer]]] = set()
        self._ended: SatrapError | None = None
        self._closed = False
        self._peer = Peer(
            f"{name} at {address}",
            client=secrets.randbits(63) + 1,
            epoch=1,
            deadline=options.deadline,
            heartbeat=options.heartbeat,
        )
        self._loop = options.network([self._peer], [address], key=options.key, on_end=self._end)
        try:
            self.ask(MessageKind.HELLO, [pack_hello(hello or {})]).result()
        except SatrapError:
            self._closed = True
            self._loop.stop()
            raise

    def ask(self, kind: MessageKind, parts: Sequence[Buffer] = ()) -> Future[Sequence[Buffer]]:
        """Send a request; return a future of the response's parts. Once closed, raise an `ExchangeError`."""
        if self._closed:
            raise ExchangeError("the connection is closed")
        call: Call[Sequence[Buffer]] = Call()
        self._calls.add(call)
        call.future.add_done_callback(lambda _: self._calls.discard(call))
        # Checked after the call is registered: if the network ends in between, `_end` fails it.
        if self._ended is not None:
            call.fail(self._ended)
        else:
            self._loop.post(lambda: self._peer.request(kind, parts, call.answer, now=self._loop.clock()))
        return call.future

    def _end(self, error: SatrapError | None) -> None:
        self._ended = error or ExchangeError("the connection is closed")
        for call in list(self._calls):
            call.fail(self._ended)

    def traffic(self) -> dict[str, int]:
        """Return payload bytes "sent" and "received", requests "resent" and "waiting"."""
        return {
            "sent": self._loop.sent_bytes,
            "received": self._loop.received_bytes,
            "resent": self._peer.resent,
            "waiting": self._peer.waiting,
        }

    def close(self, wait: float | None = None) -> None:
        """Send a goodbye, if the server still responds. Closing twice is fine.

        Args:
            wait: longest time in seconds for all open requests and the goodbye; default: the deadline.
        """
        if self._closed:
            return
        goodbye = self.ask(MessageKind.BYE)
        self._closed = True
        with suppress(TimeoutError):
            goodbye.exception(wait)  # a lost server need not receive it
        self._loop.stop()
