"""The shards of a cluster as one client sees them: requests to one or to all, and what went wrong."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from satrap.errors import ExchangeError, SatrapError
from satrap.exchange.servers.snapshots import error_of, unpack_result
from satrap.rpc.client.call import Call, told
from satrap.rpc.client.client import ClientOptions
from satrap.rpc.client.peer import OnAnswer, Peer
from satrap.rpc.wire.frames import Buffer, Kind
from satrap.rpc.wire.text import pack_hello, pack_text

JOB_SECONDS = 0.02
"""Between two looks at what shards do in the background."""

IN_FLIGHT = 64
"""Lookups and updates a caller may have open; one more waits for the oldest."""


class Shards:
    """Sends requests to shards, which serve them in the order issued; lost ones are sent again.

    Args:
        addresses: HOST:PORT of each shard.
        hellos: first message to each.
        epoch: of the shard map.
        options: key, deadline, heartbeat and network.

    Attributes:
        greetings: answers to the hellos.
        peers: the client's side of each shard.
        step: optimizer steps that must be complete before a shard serves the next request (`sync`).
        error: the first error that no caller has seen yet.

    Raises:
        ConfigError: a shard refuses the hello.
        ExchangeError: a shard cannot be reached or refuses the key.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        hellos: Sequence[Mapping[str, Any]],
        *,
        epoch: int,
        options: ClientOptions,
    ) -> None:
        self.step = 0
        self.error: SatrapError | None = None
        self._ended: SatrapError | None = None
        self._deadline, self._closed = options.deadline, False
        self._calls: set[Call[Any]] = set()
        self._room = threading.BoundedSemaphore(IN_FLIGHT)
        client = secrets.randbits(63) + 1
        self.peers = [
            Peer(
                f"shard {s} at {a}",
                client=client,
                epoch=epoch,
                deadline=options.deadline,
                heartbeat=options.heartbeat,
            )
            for s, a in enumerate(addresses)
        ]
        self._loop = options.network(self.peers, addresses, key=options.key, on_end=self._end)
        try:
            answers = self.ask_all(Kind.HELLO, [[pack_hello(hello)] for hello in hellos])
            self.greetings = [told(parts) for parts in answers]
        except SatrapError:
            self._loop.stop()
            raise

    # -- from the caller's thread

    def call(self, *, limited: bool = False) -> Call[Any]:
        """Return a call to be completed in the loop's thread; `limited`: one of `IN_FLIGHT` at a time.

        Raises:
            ExchangeError: the exchange is closed, or no place became free within two deadlines.
        """
        if self._closed:
            raise ExchangeError("the exchange is closed")
        if limited and not self._room.acquire(timeout=2 * self._deadline):
            raise self._ended or ExchangeError(f"nothing was answered for {2 * self._deadline:g} s")
        call: Call[Any] = Call()
        self._calls.add(call)
        call.future.add_done_callback(partial(self._done, call, limited))
        if self._ended is not None:
            call.fail(self._ended)
        return call

    def _done(self, call: Call[Any], limited: bool, _: Future[Any]) -> None:
        self._calls.discard(call)
        if limited:
            self._room.release()

    def post(self, task: Callable[[], None]) -> None:
        """Run a task in the loop's thread."""
        self._loop.post(task)

    def ask(self, shard: int, kind: Kind, parts: Sequence[Buffer] = ()) -> Future[Sequence[Buffer]]:
        """Issue a request to one shard; its future gives the parts of the answer."""
        call: Call[Sequence[Buffer]] = self.call()
        self.post(partial(self.send, shard, kind, parts, call.answer, step=self.step))
        return call.future

    def ask_all(self, kind: Kind, parts: Sequence[Sequence[Buffer]] | None = None) -> list[Sequence[Buffer]]:
        """Issue a request to every shard, wait, and return the answers."""
        shards = range(len(self.peers))
        futures = [self.ask(shard, kind, parts[shard] if parts else ()) for shard in shards]
        return [self._loop.wait(future) for future in futures]

    def tell_all(self, kind: Kind, text: Mapping[str, Any]) -> list[Sequence[Buffer]]:
        """Send plain data to every shard, wait, and return the answers."""
        return self.ask_all(kind, [[pack_text(text)]] * len(self.peers))

    def job(self, shard: int, text: Mapping[str, Any]) -> dict[str, Any]:
        """Return how far a shard is with what it does in the background."""
        return unpack_result(self.ask(shard, Kind.JOB, [pack_text(text)]).result())

    def run_jobs(self, kind: Kind, text: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Have all shards do something that takes long; wait for all, then raise what went wrong."""
        self.tell_all(kind, text)
        results: list[dict[str, Any]] = []
        while len(results) < len(self.peers):
            result = self.job(len(results), {})
            if result["done"]:
                results.append(result)
            else:
                time.sleep(JOB_SECONDS)
        return self.check_jobs(results)

    def check_jobs(self, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the results of all shards' jobs, if none went wrong."""
        for result, peer in zip(results, self.peers, strict=True):
            if "error" in result:
                raise error_of(result["error"], peer.name)
        return results

    def flush(self) -> None:
        """Wait until everything issued so far has been applied."""
        self.ask_all(Kind.FLUSH)
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the first error of a request that nobody waited for."""
        if self.error is not None:
            raise self.error

    def note(self, future: Future[None]) -> None:
        """Keep the error of a request that nobody waits for."""
        error = future.exception()
        if isinstance(error, SatrapError) and self.error is None:
            self.error = error

    def transfer(self) -> dict[str, int]:
        """Return payload bytes "sent" and "received", requests "resent" and "waiting"."""
        return {
            "sent": self._loop.sent_bytes,
            "received": self._loop.received_bytes,
            "resent": sum(peer.resent for peer in self.peers),
            "waiting": sum(peer.waiting for peer in self.peers),
        }

    def close(self) -> None:
        """Say goodbye and end the network. Closing twice is fine."""
        if self._closed:
            return
        try:
            if self._ended is None:
                self.ask_all(Kind.BYE)
        finally:
            self._closed = True
            self._loop.stop()

    # -- in the loop's thread

    def send(
        self,
        shard: int,
        kind: Kind,
        parts: Sequence[Buffer],
        on_answer: OnAnswer,
        *,
        step: int,
        lr_scale: float = 1.0,
    ) -> None:
        """Number a request and send it."""
        now = self._loop.clock()
        self.peers[shard].request(kind, parts, on_answer, now=now, step=step, lr_scale=lr_scale)

    def _end(self, error: SatrapError | None) -> None:
        self._ended = error or ExchangeError("the exchange is closed")
        if error is not None and self.error is None:
            self.error = error
        for call in list(self._calls):
            call.fail(self._ended)
