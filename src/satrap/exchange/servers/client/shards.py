"""A client's view of the shards of a cluster: requests to one or all of them, and their errors."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from satrap.errors import ExchangeError, SatrapError
from satrap.rpc.client.call import Call, told
from satrap.rpc.client.client import ClientOptions
from satrap.rpc.client.peer import OnAnswer, Peer
from satrap.rpc.wire.frames import Buffer, MessageKind
from satrap.rpc.wire.text import pack_hello

T = TypeVar("T")

IN_FLIGHT = 64
"""Most lookups and updates in flight; one more waits for the oldest."""


class Shards:
    """Sends requests to shards, which serve them in the order issued; lost requests are sent again.

    Args:
        addresses: HOST:PORT of each shard, by its number.
        hellos: first message to each, by its number.
        epoch: epoch of the shard map.
        options: key, deadline, heartbeat and network.

    Attributes:
        greetings: responses to the hellos, by number.
        peers: the client's side of each shard, by number.
        step: optimizer steps that must be complete before a shard serves the next request (`sync`).
        error: the first error that no caller has seen yet.

    Raises:
        ConfigError: a shard rejects the hello.
        ExchangeError: a shard cannot be reached or rejects the key.
    """

    def __init__(
        self,
        addresses: Mapping[int, str],
        hellos: Mapping[int, Mapping[str, Any]],
        *,
        epoch: int,
        options: ClientOptions,
    ) -> None:
        self.step = 0
        self.error: SatrapError | None = None
        self._ended: SatrapError | None = None
        self._deadline, self._closed = options.deadline, False
        self._calls: set[Call[Any]] = set()
        self._limited: set[Call[Any]] = set()  # of them, lookups and updates
        self._room = threading.BoundedSemaphore(IN_FLIGHT)
        self._client, self._options = secrets.randbits(63) + 1, options
        self.peers = {shard: self._peer(shard, address, epoch) for shard, address in addresses.items()}
        peers = list(self.peers.values())
        self._loop = options.network(peers, list(addresses.values()), key=options.key, on_end=self._end)
        self.greetings: dict[int, dict[str, Any]] = {}
        try:
            self._greet(hellos)
        except SatrapError:
            self._loop.stop()
            raise

    def _peer(self, shard: int, address: str, epoch: int) -> Peer:
        return Peer(
            f"shard {shard} at {address}",
            client=self._client,
            epoch=epoch,
            deadline=self._options.deadline,
            heartbeat=self._options.heartbeat,
        )

    def _greet(self, hellos: Mapping[int, Mapping[str, Any]]) -> None:
        """Send a hello to some shards, and store their limit of the message size."""
        pending = {
            shard: self.ask(shard, MessageKind.HELLO, [pack_hello(hello)]) for shard, hello in hellos.items()
        }
        for shard, answer in pending.items():
            self.greetings[shard] = told(self._loop.wait(answer))
            self.peers[shard].message_bytes = self.greetings[shard]["message_bytes"]

    # -- from the caller's thread

    def call(self, *, limited: bool = False) -> Call[Any]:
        """Return a call to be completed in the loop's thread; `limited`: one of `IN_FLIGHT` at a time.

        Raises:
            ExchangeError: the exchange is closed, or no slot became free within two deadlines.
        """
        if self._closed:
            raise ExchangeError("the exchange is closed")
        if limited and not self._room.acquire(timeout=2 * self._deadline):
            raise self._ended or ExchangeError(f"no shard responded for {2 * self._deadline:g} s")
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
        """Run a task in the loop's thread."""
        self._loop.post(task)

    def ask(self, shard: int, kind: MessageKind, parts: Sequence[Buffer] = ()) -> Future[Sequence[Buffer]]:
        """Send a request to one shard; its future gives the parts of the response."""
        call: Call[Sequence[Buffer]] = self.call()
        self.post(partial(self.send, shard, kind, parts, call.answer, step=self.step))
        return call.future

    def ask_all(self, kind: MessageKind, parts: Sequence[Buffer] = ()) -> list[Sequence[Buffer]]:
        """Send a request to every shard, wait, and return the responses."""
        futures = [self.ask(shard, kind, parts) for shard in list(self.peers)]
        return [self._loop.wait(future) for future in futures]

    def flush(self) -> None:
        """Wait until everything issued so far has been applied, and its responses have arrived.

        After a reconnect, the response to a lookup may come after the response to a later request.
        """
        open = [call.future for call in list(self._limited)]
        self.ask_all(MessageKind.FLUSH)
        for future in open:
            with suppress(SatrapError):  # the caller that waits for it gets the error
                self._loop.wait(future)
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the first error of a request that no caller waited for."""
        if self.error is not None:
            raise self.error

    def note(self, future: Future[None]) -> None:
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

    def rehearse(
        self, addresses: Mapping[int, str], hellos: Mapping[int, Mapping[str, Any]], *, epoch: int
    ) -> None:
        """Let shards that will join run the requests of a move once; they are disconnected again.

        Raises:
            ConfigError, ExchangeError: as for `join`; nothing has changed.
        """
        Shards(addresses, hellos, epoch=epoch, options=self._options).close()

    def join(
        self, addresses: Mapping[int, str], hellos: Mapping[int, Mapping[str, Any]], *, epoch: int
    ) -> None:
        """Connect to more shards and send them a hello.

        Raises:
            ConfigError: a shard rejects the hello.
            ExchangeError: a shard cannot be reached; the exchange has ended.
        """
        made = {shard: self._peer(shard, address, epoch) for shard, address in addresses.items()}
        self.peers = {**self.peers, **made}  # a new dict: other threads may be iterating over the old one

        def connect() -> None:
            for shard, peer in made.items():
                self._loop.join(peer, addresses[shard])

        self.post(connect)
        self._greet(hellos)

    def leave(self, shards: Collection[int], then: Callable[[], None]) -> None:
        """Remove shards that have received a goodbye, and call `then`, in the loop's thread."""

        done: Call[None] = self.call()

        def forget() -> None:
            for shard in shards:
                self._loop.leave(self.peers[shard])
            self.peers = {shard: peer for shard, peer in self.peers.items() if shard not in shards}
            then()
            done.succeed(None)

        self.post(forget)
        self.wait(done.future)

    def wait(self, future: Future[T]) -> T:
        """Return the result of a future that responses will complete."""
        return self._loop.wait(future)

    def close(self) -> None:
        """Send a goodbye and end the network. Closing twice is fine."""
        if self._closed:
            return
        try:
            if self._ended is None:
                self.ask_all(MessageKind.BYE)
        finally:
            self._closed = True
            self._loop.stop()

    # -- in the loop's thread

    def send(
        self,
        shard: int,
        kind: MessageKind,
        parts: Sequence[Buffer],
        on_answer: OnAnswer,
        *,
        step: int,
        lr_scale: float = 1.0,
    ) -> None:
        """Number a request and send it."""
        peer = self.peers.get(shard)
        if peer is None:
            on_answer((), ExchangeError(f"shard {shard} has left the cluster"))
            return
        peer.request(kind, parts, on_answer, now=self._loop.clock(), step=step, lr_scale=lr_scale)

    def _end(self, error: SatrapError | None) -> None:
        self._ended = error or ExchangeError("the exchange is closed")
        if error is not None and self.error is None:
            self.error = error
        for call in list(self._calls):
            call.fail(self._ended)
