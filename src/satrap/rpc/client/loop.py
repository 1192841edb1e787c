"""The thread of a client: it owns the sockets, sends, receives and checks deadlines."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from satrap.errors import ExchangeError, SatrapError
from satrap.rpc import Key
from satrap.rpc.client.peer import Message, Peer
from satrap.rpc.transport.connection import Connection, LostError
from satrap.rpc.transport.dialer import Dialer
from satrap.rpc.transport.poller import READ, Poller
from satrap.rpc.wire.frames import HEADER_BYTES, MAX_BYTES, FrameError, decode, size_of

Task = Callable[[], None]
T = TypeVar("T")
_IDLE = 3600.0
_TICK = 1.0
"""Seconds between checks of deadlines while a connection is being made."""
_STANDSTILL = 1.0
"""A round that is late by more than these seconds means that this process did not run."""
_PATIENCE = 5
"""Connections that may end before the first response."""


class ClientLoop:
    """Runs tasks and all network traffic of a client in a thread.

    Without a key nothing is encrypted. `on_end` is called last in the thread, with the error that ended it
    (None: `stop`).

    Attributes:
        sent_bytes, received_bytes: payload so far.
    """

    def __init__(self, *, key: Key | None, on_end: Callable[[SatrapError | None], None]) -> None:
        self.sent_bytes = self.received_bytes = 0
        self._on_end = on_end
        self._tasks: deque[Task] = deque()
        self._stopping = False
        self._poller: Poller[_Link] = Poller()
        self._dial = partial(Dialer, key=key, max_bytes=HEADER_BYTES + MAX_BYTES, ring=self._poller.ring)
        self._links: list[_Link] = []
        self._thread = threading.Thread(target=self._run, name="satrap-client", daemon=True)
        self._thread.start()

    def clock(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def wait(self, future: Future[T]) -> T:
        """Return the result of a future that responses will complete; another thread calls it."""
        return future.result()

    def post(self, task: Task) -> None:
        """Run a task in the thread, after earlier ones."""
        self._tasks.append(task)
        self._poller.ring()  # if the thread has ended, `on_end` has failed all open calls

    def join(self, peer: Peer, address: str) -> None:
        """Carry the messages of one more server; call it in the thread."""
        link = _Link(peer, self._dial(address))
        self._links.append(link)
        link.dialer.dial()

    def leave(self, peer: Peer) -> None:
        """Close the connection with a server; call it in the thread."""
        for link in [link for link in self._links if link.peer is peer]:
            self._links.remove(link)
            link.dialer.close()
            self._drop(link)

    def stop(self) -> None:
        """End the thread and close the connections."""
        self.post(self._stop)
        self._thread.join()

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        error: SatrapError | None = ExchangeError("the client's thread ended unexpectedly")
        try:
            self._serve()
            error = None
        except SatrapError as ended:
            error = ended
        finally:
            self._on_end(error)
            for link in self._links:
                link.dialer.close()
                self._drop(link)
            self._poller.close()

    def _serve(self) -> None:
        while not self._stopping:
            until = time.monotonic() + (pause := self._pause())
            ready = self._poller.wait(pause)
            # Standstill counts from the planned end of the poll, or from its actual end if that is earlier.
            until = min(until, time.monotonic())
            for link, events in ready:
                self._exchange(link, events)
            while self._tasks:
                self._tasks.popleft()()
            now, busy = time.monotonic(), any(link.peer.waiting for link in self._links)
            for link in self._links:
                # Responses may have arrived unread while the process stood still, so deadlines are extended
                # before `overdue` is checked.
                if now - until > _STANDSTILL:
                    link.peer.excuse(now - until)
                if link.connection is None:
                    self._connect(link)
                if link.connection is not None:
                    self._send(link, link.peer.outgoing(now, busy=busy))
                if error := link.peer.overdue(now):
                    raise error

    def _pause(self) -> float:
        """Return the seconds until a peer has to act without a message."""
        connected = [link for link in self._links if link.connection is not None]
        until = min((link.peer.next_deadline() for link in connected), default=float("inf"))
        longest = _IDLE if len(connected) == len(self._links) else _TICK
        return min(max(until - time.monotonic(), 0.0), longest) + 0.001

    def _connect(self, link: _Link) -> None:
        """Take over a new connection, and send a PING to find the messages lost with the previous one."""
        try:
            link.connection = link.dialer.made()
        except LostError as error:
            self._failed(link, error)
            return
        if link.connection is not None:
            self._send(link, [link.peer.ping(time.monotonic())] if link.spoken else [])

    def _failed(self, link: _Link, error: LostError) -> None:
        """Connect again, unless the server rejects this client."""
        link.failures += _PATIENCE if error.stranger else error.met
        if link.failures >= _PATIENCE and not link.peer.greeted:
            raise _refused(link.peer)
        link.dialer.dial()

    def _exchange(self, link: _Link, events: int) -> None:
        connection = link.connection
        if connection is None:  # lost since the round began
            return
        try:
            if events & READ:
                for message in connection.receive():
                    link.failures = 0
                    link.dialer.succeeded()
                    self._receive(link, message)
        except LostError as error:
            self._lost(link, connection, error)
        self._watch(link)

    def _receive(self, link: _Link, message: Message) -> None:
        peer, head, parts = link.peer, message[0], message[1:]
        try:
            if len(head) != HEADER_BYTES:
                raise FrameError("the message is not a satrap message")
            header = decode(bytes(head), parts)
        except FrameError as error:
            raise ExchangeError(f"{peer.name} sent an invalid response: {error.what}") from error
        self.received_bytes += size_of(parts)
        self._send(link, peer.receive(header, parts, time.monotonic()))

    def _send(self, link: _Link, messages: Iterable[Message]) -> None:
        connection = link.connection
        if connection is None:
            return  # the PING on the next connection finds out which requests the server lacks
        for message in messages:
            self.sent_bytes += size_of(message[1:])
            connection.send(message)
            link.spoken = True
        try:
            connection.flush()
        except LostError as error:
            self._lost(link, connection, error)
        self._watch(link)

    def _watch(self, link: _Link) -> None:
        if link.connection is not None:
            self._poller.watch(link.connection, link.connection.wants(), link)
            if link.connection.more:
                self._poller.again(link)

    def _lost(self, link: _Link, connection: Connection, error: LostError) -> None:
        if connection is link.connection:
            self._drop(link)
            self._failed(link, error)

    def _drop(self, link: _Link) -> None:
        if link.connection is not None:
            self._poller.watch(link.connection, 0, link)
            link.connection.close()
            link.connection = None


class _Link:
    """A peer and its connection, None while it is broken."""

    def __init__(self, peer: Peer, dialer: Dialer) -> None:
        self.peer, self.dialer, self.failures, self.spoken = peer, dialer, 0, False
        self.connection: Connection | None = None


def _refused(peer: Peer) -> ExchangeError:
    return ExchangeError(
        f"{peer.name} rejected the connection: the keys do not match, or the server is not a satrap server",
        where="stage: connection",
        why="a server with a key accepts only holders of the same key",
        fix="give every role the same key file, or none on loopback",
    )
