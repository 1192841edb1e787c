"""A client of one or more servers: it owns their peers, a network and the open calls."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from satrap.errors import ExchangeError, SatrapError
from satrap.rpc import Key
from satrap.rpc.client.call import Call, told
from satrap.rpc.client.loop import ClientLoop
from satrap.rpc.client.peer import OnAnswer, Peer
from satrap.rpc.wire.frames import MAX_BYTES, Buffer, MessageKind
from satrap.rpc.wire.text import pack_hello

T = TypeVar("T")

IN_FLIGHT = 64
"""Most limited calls in flight; one more waits until another is complete."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of a client's connections to servers.

    Args:
        key: key of the cluster; needed to reach another machine.
        deadline: seconds without a response after which a server counts as lost, default 30.
        heartbeat: seconds of silence after which the client sends a PING, default 1.
        network: carries the messages as `ClientLoop` does, the default; tests simulate one.
    """

    key: Key | None = None
    deadline: float = 30.0
    heartbeat: float = 1.0
    network: Callable[..., ClientLoop] = ClientLoop


class Client:
    """Sends requests to servers. Each executes them once and in order; lost requests are sent again.

    Args:
        name: name of a server in errors; "{}" stands for its number, for example "shard {}".
        addresses: HOST:PORT of each server, by its number.
        hellos: content of the first message to each, by its number; default: empty.
        epoch: epoch of the shard map, default 1.
        options: key, deadline, heartbeat and network.

    Attributes:
        greetings: responses to the hellos, by number.
        peers: the client's side of each server, by number.
        step: optimizer steps that must be complete before a server executes the next request (`sync`).
        error: the first error that no caller has seen yet.

    Raises:
        ConfigError: a server rejects the hello.
        ExchangeError: a server cannot be reached or rejects the key.
    """

    def __init__(
        self,
        name: str,
        addresses: Mapping[int, str],
        hellos: Mapping[int, Mapping[str, Any]] | None = None,
        *,
        epoch: int = 1,
        options: ClientOptions = ClientOptions(),
    ) -> None:
        self.step = 0
        self.error: SatrapError | None = None
        self.greetings: dict[int, dict[str, Any]] = {}
        self._ended: SatrapError | None = None
        self._name, self._options, self._closed = name, options, False
        self._calls: set[Call[Any]] = set()
        self._limited: set[Call[Any]] = set()  # a part of them
        self._room = threading.BoundedSemaphore(IN_FLIGHT)
        self._client = secrets.randbits(63) + 1
        self.peers: dict[int, Peer] = {}
        self._loop = options.network(key=options.key, on_end=self._end)
        try:
            self.join(addresses, {key: {} for key in addresses} if hellos is None else hellos, epoch=epoch)
        except SatrapError:
            self._closed = True
            self._loop.stop()
            raise

    # -- from the caller's thread

    def call(self, *, limited: bool = False) -> Call[Any]:
        """Return a call to be completed in the network's thread; `limited`: one of `IN_FLIGHT` at a time.

        Raises:
            ExchangeError: the client is closed, or no limited call was completed within two deadlines.
        """
        if self._closed:
            raise ExchangeError("the connection is closed")
        patience = 2 * self._options.deadline
        if limited and not self._room.acquire(timeout=patience):
            raise self._ended or ExchangeError(
                f"{self._name.format('').strip()}: no response for {patience:g} s",
                why=f"{IN_FLIGHT} requests are in flight, and further requests must wait",
            )
        call: Call[Any] = Call()
        self._calls.add(call)
        if limited:
            self._limited.add(call)
        call.future.add_done_callback(partial(self._done, call, limited))
        # Checked after the call is registered: if the network ends in between, `_end` fails it.
        if self._ended is not None:
            call.fail(self._ended)
        return call

    def _done(self, call: Call[Any], limited: bool, _: Future[Any]) -> None:
        self._calls.discard(call)
        self._limited.discard(call)
        if limited:
            self._room.release()

    def post(self, task: Callable[[], None]) -> None:
        """Run a task in the network's thread."""
        self._loop.post(task)

    def ask(
        self, server: int, kind: MessageKind, parts: Sequence[Buffer] = (), *, limited: bool = False
    ) -> Future[Sequence[Buffer]]:
        """Send a request to a server; return a future of the response's parts. Raises as `call`."""
        call: Call[Sequence[Buffer]] = self.call(limited=limited)
        if self._ended is None:
            self.post(partial(self.send, server, kind, parts, call.answer, step=self.step))
        return call.future

    def ask_all(self, kind: MessageKind, parts: Sequence[Buffer] = ()) -> list[Sequence[Buffer]]:
        """Send a request to every server, wait, and return the responses."""
        futures = [self.ask(server, kind, parts) for server in list(self.peers)]
        return [self.wait(future) for future in futures]

    def flush(self) -> list[Sequence[Buffer]]:
        """Wait until everything issued so far has been applied; return the responses of all servers.

        The responses to limited calls have arrived as well: after a reconnect, the response to a lookup may
        come after the response to a later request.
        """
        open = [call.future for call in list(self._limited)]
        answers = self.ask_all(MessageKind.FLUSH)
        for future in open:
            with suppress(SatrapError):  # the caller that waits for it gets the error
                self.wait(future)
        self.raise_error()
        return answers

    def raise_error(self) -> None:
        """Raise the first error of a request that no caller waited for."""
        if self.error is not None:
            raise self.error

    def note(self, future: Future[Any]) -> None:
        """Store the error of a request that no caller waits for."""
        error = future.exception()
        if isinstance(error, SatrapError) and self.error is None:
            self.error = error

    def transfer(self) -> dict[str, int]:
        """Return payload bytes "sent" and "received", requests "resent" and "waiting"."""
        peers = list(self.peers.values())
        return {
            "sent": self._loop.sent_bytes,
            "received": self._loop.received_bytes,
            "resent": sum(peer.resent for peer in peers),
            "waiting": sum(peer.waiting for peer in peers),
        }

    def another(
        self, addresses: Mapping[int, str], hellos: Mapping[int, Mapping[str, Any]], *, epoch: int
    ) -> Client:
        """Return a client of other servers with the same options; raises as the constructor."""
        return Client(self._name, addresses, hellos, epoch=epoch, options=self._options)

    def join(
        self, addresses: Mapping[int, str], hellos: Mapping[int, Mapping[str, Any]], *, epoch: int
    ) -> None:
        """Connect to more servers and send them a hello.

        Raises:
            ConfigError: a server rejects the hello.
            ExchangeError: a server cannot be reached; the client has ended.
        """
        made = {
            server: Peer(
                f"{self._name.format(server)} at {address}",
                client=self._client,
                epoch=epoch,
                deadline=self._options.deadline,
                heartbeat=self._options.heartbeat,
            )
            for server, address in addresses.items()
        }
        self.peers = {**self.peers, **made}  # a new dict: other threads may be iterating over the old one

        def connect() -> None:
            for server, peer in made.items():
                self._loop.join(peer, addresses[server])

        self.post(connect)
        pending = {
            server: self.ask(server, MessageKind.HELLO, [pack_hello(hello)])
            for server, hello in hellos.items()
        }
        for server, answer in pending.items():
            parts = self.wait(answer)
            self.greetings[server] = greeting = told(parts) if parts else {}
            self.peers[server].message_bytes = greeting.get("message_bytes", MAX_BYTES)

    def leave(self, servers: Collection[int], then: Callable[[], None]) -> None:
        """Remove servers that have received a goodbye, and call `then`, in the network's thread."""
        done: Call[None] = self.call()

        def forget() -> None:
            for server in servers:
                self._loop.leave(self.peers[server])
            self.peers = {server: peer for server, peer in self.peers.items() if server not in servers}
            then()
            done.succeed(None)

        self.post(forget)
        self.wait(done.future)

    def wait(self, future: Future[T]) -> T:
        """Return the result of a future that responses will complete."""
        return self._loop.wait(future)

    def close(self, wait: float | None = None) -> None:
        """Send goodbyes, if the servers still respond. Closing twice is fine.

        Args:
            wait: longest time in seconds for the open requests and the goodbye of each server, whose errors
                are ignored; default: until its deadline, and the first error is raised.
        """
        if self._closed:
            return
        goodbyes = [] if self._ended else [self.ask(server, MessageKind.BYE) for server in self.peers]
        self._closed = True
        try:
            for goodbye in goodbyes:
                if wait is None:
                    self.wait(goodbye)
                else:
                    with suppress(TimeoutError, SatrapError):  # a lost server need not receive it
                        goodbye.result(wait)
        finally:
            self._loop.stop()

    # -- in the network's thread

    def send(
        self,
        server: int,
        kind: MessageKind,
        parts: Sequence[Buffer],
        on_answer: OnAnswer,
        *,
        step: int,
        lr_scale: float = 1.0,
    ) -> None:
        """Number a request and send it."""
        peer = self.peers.get(server)
        if peer is None:
            on_answer((), ExchangeError(f"{self._name.format(server)} has left the cluster"))
            return
        peer.request(kind, parts, on_answer, now=self._loop.clock(), step=step, lr_scale=lr_scale)

    def _end(self, error: SatrapError | None) -> None:
        self._ended = error or ExchangeError("the connection is closed")
        if error is not None and self.error is None:
            self.error = error
        for call in list(self._calls):
            call.fail(self._ended)
