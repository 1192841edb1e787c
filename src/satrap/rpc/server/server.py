"""A server: receives, checks and orders requests, lets a handler execute them, sends responses."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import asdict
from functools import partial
from typing import Protocol, Self

from satrap.errors import ExchangeError, SatrapError, StoreError
from satrap.rpc import Key, check_listen
from satrap.rpc.server.fair_queue import FairQueue
from satrap.rpc.server.handler import Dispatcher, Handler, Job
from satrap.rpc.server.journal import Journal
from satrap.rpc.server.session import Answer, Session
from satrap.rpc.server.sessions import Limits, Sessions
from satrap.rpc.server.statistics import ServerStatistics
from satrap.rpc.server.turns import Turns
from satrap.rpc.transport.framing import Message
from satrap.rpc.transport.listener import Bounds, Listener
from satrap.rpc.wire.frames import FAILURE, HEADER_BYTES, MessageKind, encode, name_of

_TICK = 0.5
"""Seconds between checks whether `request_stop` was called."""
_PAUSE = 0.2
"""Seconds between checks of waiting requests."""
_UNSENT = 16 << 20
"""Bytes that may wait to be sent on a connection, 16 MiB."""
_LINGER = 0.5
"""Seconds for the last responses to be sent when the server stops."""


class ReplayLog(Protocol):
    """Stores a server's requests and repeats them after a restart; its `str` names the source.

    Attributes:
        journal: requests are written there before they are executed.
        updates: number of updates to repeat.
    """

    journal: Journal
    updates: int

    def progress(self) -> int | None:
        """Return a number that grows while requests are repeated, None afterwards."""

    def recover(self, sessions: Sessions, stopping: Callable[[], bool]) -> None:
        """Repeat all requests; stop when `stopping` returns True."""

    def executed(self, job: Job, sessions: Sessions) -> None:
        """Called after each executed request; raise a `StoreError` if the disk is full."""

    def tidy(self) -> None:
        """Delete parts of the journal that are no longer needed."""


class Server:
    """A handler behind a socket.

    A malformed message is counted, answered with an error and dropped; it never ends the server. Requests of
    one client are executed in order, each exactly once.

    Args:
        listen: HOST:PORT. Anything but a loopback address needs a key.
        handler: executes the requests.
        key: from `read_key`; both sides must hold it, and connections are encrypted.
        limits: see `Limits`.
        dispatcher: class that decides when requests are executed; the default needs a `SerialHandler`.
        durability: stores requests and repeats them in the background, while clients wait; None: no request
            is stored.

    Attributes:
        address: HOST:PORT it listens on.
        counters: counts of its messages.

    Raises:
        ConfigError: the address cannot be used, or is open to other machines without a key.
    """

    def __init__(
        self,
        listen: str,
        handler: Handler,
        *,
        key: Key | None = None,
        limits: Limits | None = None,
        dispatcher: Callable[..., Dispatcher] = Turns,
        durability: ReplayLog | None = None,
    ) -> None:
        check_listen(listen, key)
        self.handler, self.encrypted, self.durability = handler, key is not None, durability
        self.limits = limits or Limits()
        handler.observe = self.statistics
        self._queue = FairQueue()
        self._sessions = Sessions(
            self.limits,
            self._queue.put,
            epoch=lambda: handler.epoch,
            recovering=durability.progress if durability else lambda: None,
            ahead=partial(handler.expect, MessageKind.PREFETCH),
        )
        self.counters = self._sessions.counters
        journal = durability and durability.journal
        self._dispatcher = dispatcher(handler, self._finished, self._sessions, journal)
        self._executor = threading.Thread(target=self._execute, name="satrap-server", daemon=True)
        self._error: SatrapError | None = None
        self._answers: deque[tuple[Job, Answer, bool]] = deque()
        self._unsent: dict[Hashable, deque[tuple[Session, int]]] = {}
        self._stopping = threading.Event()
        self._started = time.monotonic()
        self._thread: threading.Thread | None = None
        self._stopped: set[Hashable] = set()
        bounds = Bounds(
            message_bytes=self.limits.message_bytes + HEADER_BYTES,
            unsent_bytes=_UNSENT,  # further responses wait in their sessions
            all_unsent_bytes=8 * _UNSENT,
        )
        self._listener = Listener(
            listen, key=key, bounds=bounds, on_message=self._receive, on_end=self._sessions.gone
        )
        self.address = self._listener.address

    def start(self) -> Self:
        """Serve in background threads until `stop`."""
        self._thread = threading.Thread(target=self.run, name="satrap-server-io", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving after the running request, and close the handler."""
        self._stopping.set()
        if self._thread is None:
            self._listener.close()
        else:
            self._listener.ring()
            self._thread.join()

    def request_stop(self) -> None:
        """Let `run` return soon; safe in a signal handler."""
        self._stopping.set()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def run(self) -> None:
        """Serve in this thread until `stop` or `request_stop` is called."""
        self._executor.start()
        try:
            while not self._stopping.is_set():
                if not self._executor.is_alive() and not self._stopping.is_set():
                    raise self._error or ExchangeError("the thread that executes requests has died")
                self._listener.poll(_TICK)
                self._drain()
        finally:
            self._stopping.set()
            self._queue.close()
            self._executor.join()
            self._drain()
            self._listener.close(_LINGER)

    def _execute(self) -> None:
        """Recover, then execute the requests in the queue, in a thread of its own."""
        durability, looked = self.durability, time.monotonic()
        try:
            if durability is not None:
                durability.recover(self._sessions, self._stopping.is_set)
                self._sessions.resume_at(time.monotonic())
            while not self._stopping.is_set():
                if (job := self._queue.get(_PAUSE)) is not None:
                    self._dispatcher.take(job)
                if (now := time.monotonic()) - looked >= _PAUSE:
                    looked = now
                    self._look(now)
        except SatrapError as error:
            self._error = error
        finally:
            self.handler.close()
            if durability is not None:
                durability.journal.close()

    def _look(self, now: float) -> None:
        """Look at requests that wait, and at clients that may be gone."""
        self._dispatcher.expire(now)
        self._sessions.sweep(now)
        self.handler.forget(lambda client: self._sessions.absent(client, now))
        if self.durability is not None:
            self.durability.tidy()

    def statistics(self) -> ServerStatistics:
        """Return its counters; any thread may call it."""
        dispatcher, queue, durability = self._dispatcher, self._queue, self.durability
        sessions = self._sessions.known.values()
        return ServerStatistics(
            **asdict(self.counters),
            clients=len(sessions),
            queued=sum(s.parked for s in sessions) + queue.jobs,
            queued_bytes=sum(s.parked_bytes for s in sessions) + queue.bytes,
            kept_bytes=sum(s.bytes for s in sessions),
            requests={name_of(kind): dispatcher.executed[kind] for kind in self.handler.kinds},
            refused=dispatcher.refused,
            busy_seconds=dispatcher.busy,
            seconds=time.monotonic() - self._started,
            journal_bytes=0 if durability is None else durability.journal.size,
            recovered=0 if durability is None else durability.updates,
        )

    def _has_room(self) -> bool:
        queue, limits = self._queue, self.limits
        return queue.bytes < limits.queued_bytes and queue.jobs < limits.queued_messages

    def _receive(self, number: Hashable, message: Message) -> None:
        head = bytes(message[0]) if len(message[0]) == HEADER_BYTES else None
        answer = self._sessions.receive(number, head, message[1:], time.monotonic())
        if answer is None or answer.header.kind != FAILURE:
            self._listener.trust(number)
        if number not in self._unsent:  # otherwise it would overtake responses, which would look lost
            self._send(number, answer)
        if not self._has_room():
            self._stopped.add(number)
            self._listener.pause(number, True)

    def _finished(self, job: Job, answer: Answer, *, last: bool = True) -> None:
        """Pass a response to the socket's thread; `last`: no other response follows."""
        if last:
            # Stored first: if it cannot be sent, it is repeated from there.
            self._sessions.finished(job, answer)
        if self.durability is not None and answer.header.kind != FAILURE:
            with contextlib.suppress(StoreError):
                self.durability.executed(job, self._sessions)
        self._answers.append((job, answer, last))
        self._listener.ring()

    def _drain(self) -> None:
        """Send responses; read again from paused connections, if there is room."""
        while self._answers:
            job, answer, last = self._answers.popleft()
            number = job.session.identity
            if job.header.kind == MessageKind.HELLO and answer.header.kind == FAILURE:
                self._listener.trust(number, False)
            if last:
                self._unsent.setdefault(number, deque()).append((job.session, job.header.sequence))
            else:
                self._send(number, answer)
        for number, waiting in list(self._unsent.items()):
            while waiting and self._send(number, waiting[0][0].answer(waiting[0][1])):
                waiting.popleft()
            if not waiting or number not in self._listener:
                del self._unsent[number]
        while self._stopped and self._has_room():
            self._listener.pause(self._stopped.pop(), False)

    def _send(self, number: Hashable, answer: Answer | None) -> bool:
        """Send a response, if any; return False if the connection is gone or accepts no more for now."""
        if answer is None:
            return True
        sent = self._listener.send(number, [encode(answer.header, answer.payload), *answer.parts])
        self.counters.sent_bytes += answer.payload.size * sent
        return sent
