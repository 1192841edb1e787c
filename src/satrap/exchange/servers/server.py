"""The socket of a shard: receives, checks and orders requests, sends answers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from satrap.errors import ExchangeError, StoreError
from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.servers.executor import Executor
from satrap.exchange.servers.journal import Journal
from satrap.exchange.servers.recovery import Recovery, Rotation
from satrap.exchange.servers.service import Service
from satrap.exchange.servers.session import Answer, Session
from satrap.exchange.servers.sessions import Counters, Limits, Sessions
from satrap.exchange.servers.turns import Job, Turns
from satrap.rpc import Bounds, Key, Listener, Message, check_listen
from satrap.rpc.wire.frames import FAILURE, HEADER_BYTES, Kind, encode

EXECUTED = tuple(kind for kind in Kind if kind < Kind.OPEN)
"""Requests to a store."""
_TICK = 0.5
"""Seconds between looks at the wish to stop, when a signal handler asks for it."""
_UNSENT = 16 << 20
"""Bytes that wait to be sent on one connection, 16 MiB."""
_LINGER = 0.5
"""Seconds that answers may take to leave when the server stops."""


class ShardServer:
    """One shard behind a socket.

    ```python
    with ShardServer("127.0.0.1:0") as server:      # port 0: any free one
        exchange = ServersExchange([server.address], tables)
    ```

    The first client's hello configures the tables; later ones must agree. A message that cannot be believed
    is dropped and counted, and answered with an error; it never ends the server. Requests of one client are
    executed in order, each exactly once; requests of all clients in order of arrival, except that in `sync`
    with several workers a request waits until the optimizer steps before it are complete.

    Args:
        listen: HOST:PORT. Anything but a loopback address needs a key.
        key: from `read_key`; connections are then encrypted and both sides proven to hold it.
        limits: see `Limits`.
        config: the tables, if they are not to come from a hello.
        service: what executes the requests, default one with a store.
        journal: folder where every request is written before it is executed, and from which the shard comes
            back as it was after its process has died; None: nothing is kept.
        turns: makes what decides when a request is executed, default `Turns`.

    Attributes:
        address: HOST:PORT it listens on.
        counters: see `Counters`.
        recovery: from the journal; it goes on in the background while clients are told to wait. Or None.

    Raises:
        ConfigError: an address that cannot be used, or one open to others without a key; a journal that
            another process keeps.
        CheckpointError: the journal is damaged.
    """

    def __init__(
        self,
        listen: str,
        *,
        key: Key | None = None,
        limits: Limits | None = None,
        config: ShardConfig | None = None,
        service: Service | None = None,
        journal: Path | None = None,
        turns: Callable[..., Turns] = Turns,
    ) -> None:
        check_listen(listen, key)
        self.limits, self.counters = limits or Limits(), Counters()
        self._journal = None if journal is None else Journal(journal)
        self.recovery = None if self._journal is None else Recovery(self._journal)
        self._rotation = None if self._journal is None else Rotation(self._journal)
        self._service = service or Service(config, max_bytes=self.limits.message_bytes)
        self._service.observe = self._observe
        self._sessions = Sessions(
            self.limits,
            self.counters,
            self._submit,
            epoch=self._epoch,
            recovering=self.recovery.progress if self.recovery else lambda: None,
            ahead=partial(self._service.expect, Kind.LOOKUP),
        )
        self._turns = turns(
            self._service,
            self._finished,
            wait=self.limits.wait,
            heard=self._sessions.heard,
            has_room=self._sessions.has_room,
            journal=self._journal,
        )
        self._answers: deque[tuple[Job, Answer, bool]] = deque()
        self._unsent: dict[Hashable, deque[tuple[Session, int]]] = {}
        self._stopping = threading.Event()
        self._executor: Executor | None = None
        self._started = time.monotonic()
        self._thread: threading.Thread | None = None
        self._stopped: set[Hashable] = set()
        bounds = Bounds(
            message_bytes=self.limits.message_bytes + HEADER_BYTES,
            unsent_bytes=_UNSENT,  # more would be no faster: what finds no room waits in its session
            all_unsent_bytes=8 * _UNSENT,
        )
        self._listener = Listener(
            listen, key=key, bounds=bounds, on_message=self._receive, on_end=self._sessions.gone
        )
        self.address = self._listener.address

    def start(self) -> ShardServer:
        """Serve in background threads until `stop`."""
        self._thread = threading.Thread(target=self.run, name="satrap-shard-io", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving, after the request that is being executed; the rows are gone."""
        self._stopping.set()
        if self._thread is None:
            self._listener.close()
        else:
            self._listener.ring()
            self._thread.join()

    def request_stop(self) -> None:
        """Ask `run` to return soon; safe in a signal handler."""
        self._stopping.set()

    def __enter__(self) -> ShardServer:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def run(self) -> None:
        """Serve in this thread until `stop` or `request_stop` is called."""
        self._executor = executor = Executor(self._turns, self._recover, self._end, self._sweep)
        try:
            self._loop(executor)
        finally:
            executor.stop()
            self._drain()
            self._listener.close(_LINGER)

    def _recover(self) -> None:
        if self.recovery is not None:
            self.recovery.run(self._service, self._sessions, self._stopping.is_set)
            self._sessions.resume_at(time.monotonic())

    def _sweep(self, now: float) -> None:
        self._sessions.sweep(now)
        self._service.forget(lambda client: self._sessions.absent(client, now))
        if self._rotation is not None:
            self._rotation.tidy()

    def _end(self) -> None:
        self._service.close()
        if self._journal is not None:
            self._journal.close()

    def _loop(self, executor: Executor) -> None:
        while not self._stopping.is_set():
            if not executor.alive:
                raise executor.error or ExchangeError("the thread that executes requests has died")
            self._listener.poll(_TICK)
            self._drain()

    def statistics(self) -> dict[str, Any]:
        """Return the store's counters (none before the first hello), and under `server` its own.

        Those are the `Counters`; `clients` known; requests and bytes `queued` now, `kept_bytes` of answers
        that clients have not acknowledged; requests executed, by kind, and `refused`; `busy_seconds` spent
        executing of the `seconds` it has been there; optimizer `steps` that `sync` with several workers has
        completed; which `shard` it is; bytes of its journal and updates `recovered` from it. Any thread may
        call it.
        """
        return self._service.statistics()

    def _observe(self) -> dict[str, Any]:
        turns, executor, known = self._turns, self._executor, self._sessions.known.values()
        return {
            **asdict(self.counters),
            "clients": len(known),
            "queued": sum(s.parked for s in known) + (executor.queued if executor else 0),
            "queued_bytes": sum(s.parked_bytes for s in known) + (executor.queued_bytes if executor else 0),
            "kept_bytes": sum(s.bytes for s in known),
            "requests": {k.name.lower(): turns.executed[k] for k in EXECUTED},
            "refused": turns.refused,
            "busy_seconds": turns.busy,
            "seconds": time.monotonic() - self._started,
            "steps": self._service.board.completed,
            "shard": "" if self._service.config is None else str(self._service.config.shard),
            "journal_bytes": 0 if self._journal is None else self._journal.size,
            "recovered": 0 if self.recovery is None else self.recovery.updates,
        }

    def _epoch(self) -> int | None:
        config = self._service.config
        return None if config is None else config.map.epoch

    def _submit(self, job: Job) -> None:
        assert self._executor is not None
        self._executor.submit(job)

    def _has_room(self) -> bool:
        executor, limits = self._executor, self.limits
        assert executor is not None
        return executor.queued_bytes < limits.queued_bytes and executor.queued < limits.queued_messages

    def _receive(self, number: Hashable, message: Message) -> None:
        head = bytes(message[0]) if len(message[0]) == HEADER_BYTES else None
        answer = self._sessions.receive(number, head, message[1:], time.monotonic())
        if answer is None or answer.header.kind != FAILURE:
            self._listener.trust(number)
        if number not in self._unsent:  # else it would overtake answers and look like a loss
            self._send(number, answer)
        if not self._has_room():
            self._stopped.add(number)
            self._listener.stop(number)

    def _finished(self, job: Job, answer: Answer, *, last: bool = True) -> None:
        """Hand an answer over to the socket's thread (called in an executing one); `last`: none follows."""
        if last:
            self._sessions.finished(job, answer)
        if self._rotation is not None and answer.header.kind != FAILURE:
            with contextlib.suppress(StoreError):  # without room it goes on as it was
                self._rotation.executed(job, self._service, self._sessions)
        self._answers.append((job, answer, last))
        self._listener.ring()

    def _drain(self) -> None:
        """Send what has been executed; then there may be room for more."""
        while self._answers:
            job, answer, last = self._answers.popleft()
            number = job.session.identity
            if job.header.kind == Kind.HELLO and answer.header.kind == FAILURE:
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
            self._listener.resume(self._stopped.pop())

    def _send(self, number: Hashable, answer: Answer | None) -> bool:
        """Send an answer; return False if the connection has gone, or takes no more for now.

        What a slow reader is to get waits in its session. Of None, which is no answer, nothing is sent.
        """
        if answer is None:
            return True
        sent = self._listener.send(number, [encode(answer.header, answer.payload), *answer.parts])
        self.counters.sent_bytes += answer.payload.size * sent
        return sent
