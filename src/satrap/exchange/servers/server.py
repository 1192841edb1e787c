"""The socket of a shard: receives, checks and orders requests, sends answers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from satrap.errors import ConfigError, ExchangeError, StoreError
from satrap.exchange.servers import security
from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.servers.context import new_context
from satrap.exchange.servers.executor import Executor
from satrap.exchange.servers.frames import FAILURE, HEADER_BYTES, Kind, encode
from satrap.exchange.servers.journal import Journal
from satrap.exchange.servers.payload import unpack_text
from satrap.exchange.servers.recovery import Recovery, rotate
from satrap.exchange.servers.service import Service
from satrap.exchange.servers.session import Answer
from satrap.exchange.servers.sessions import Counters, Limits, Sessions
from satrap.exchange.servers.turns import Job, Turns

EXECUTED = tuple(kind for kind in Kind if kind < Kind.OPEN)
"""Requests to a store."""
_TICK = 500
"""Milliseconds between looks at the wish to stop, when a signal handler asks for it."""
_BURST = 64
"""Messages read before answers are sent again."""


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
        key: from `security.read_key`; connections are then encrypted and both sides proven to hold it.
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
        key: security.Key | None = None,
        limits: Limits | None = None,
        config: ShardConfig | None = None,
        service: Service | None = None,
        journal: Path | None = None,
        turns: Callable[..., Turns] = Turns,
    ) -> None:
        security.check_listen(listen, key)
        self.limits, self.counters = limits or Limits(), Counters()
        self._journal = None if journal is None else Journal(journal)
        self.recovery = None if self._journal is None else Recovery(self._journal)
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
            journal=self._journal,
        )
        self._queued, self._queued_bytes = 0, 0
        self._answers: deque[tuple[Job, Answer, bool]] = deque()
        self._stopping = threading.Event()
        self._executor: Executor | None = None
        self._started = time.monotonic()
        self._thread: threading.Thread | None = None
        self._context = new_context()
        self._door = security.Door(self._context, key) if key else None
        self._socket = self._open(listen, key)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://")
        self._bell = self._context.socket(zmq.PULL)
        self._bell.bind("inproc://bell")
        self._ringer = self._context.socket(zmq.PUSH)  # of the executing threads, one at a time
        self._ringer.connect("inproc://bell")
        self._ring_lock = threading.Lock()

    def _open(self, listen: str, key: security.Key | None) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 500)
        socket.setsockopt(zmq.MAXMSGSIZE, self.limits.message_bytes)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
        if key:
            key.protect_server(socket)
        host, port = security.split_address(listen)
        socket.setsockopt(zmq.IPV6, ":" in host)
        try:
            socket.bind(f"tcp://{security.bindable(host)}:{port}")
        except zmq.ZMQError as error:
            socket.close(0)
            self._context.destroy(0)
            raise ConfigError(f"cannot listen on {listen}: {error.strerror}") from error
        return socket

    def start(self) -> ShardServer:
        """Serve in background threads until `stop`."""
        self._thread = threading.Thread(target=self.run, name="satrap-shard-io", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving, after the requests received so far; the rows are gone."""
        self._stopping.set()
        if self._thread is None:
            self._close()
        else:
            with self._context.socket(zmq.PUSH) as ringer:
                ringer.connect("inproc://bell")
                with contextlib.suppress(zmq.Again):  # the thread has seen the wish by itself, and ended
                    ringer.send(b"", zmq.NOBLOCK)
                self._thread.join()
        self._context.term()

    def request_stop(self) -> None:
        """Ask `run` to return soon; safe in a signal handler."""
        self._stopping.set()

    def __enter__(self) -> ShardServer:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def run(self) -> None:
        """Serve in this thread until `stop` or `request_stop` is called."""
        self._executor = executor = Executor(self._turns, self._recover, self._end)
        try:
            self._loop(executor)
        finally:
            executor.stop()
            self._drain()
            self._close()

    def _recover(self) -> None:
        if self.recovery is not None:
            self.recovery.run(self._service, self._sessions)

    def _end(self) -> None:
        self._service.close()
        if self._journal is not None:
            self._journal.close()

    def _close(self) -> None:
        with self._ring_lock:
            self._ringer.close()
        for socket in (self._socket, self._bell, *([self._door.socket] if self._door else [])):
            socket.close()

    def _loop(self, executor: Executor) -> None:
        poller = zmq.Poller()
        poller.register(self._bell, zmq.POLLIN)
        if self._door:
            poller.register(self._door.socket, zmq.POLLIN)
        while not self._stopping.is_set():
            if not executor.alive:
                raise executor.error or ExchangeError("the thread that executes requests has died")
            poller.register(self._socket, zmq.POLLIN if self._has_room() else 0)
            for socket, _ in poller.poll(_TICK):
                if socket is self._socket:
                    self._read()
                elif socket is self._bell:
                    self._bell.recv()
                elif self._door:
                    self._door.answer()
            self._drain()

    def statistics(self) -> dict[str, Any]:
        """Return the store's counters (none before the first hello), and under `server` its own.

        Those are the `Counters`; `clients` known; requests and bytes `queued` now; requests executed, by
        kind, and `refused`; `busy_seconds` spent executing of the `seconds` it has been there; optimizer
        `steps` that `sync` with several workers has completed; which `shard` it is; bytes of its journal and
        updates `recovered` from it. Any thread may call it.
        """
        return self._service.statistics()

    def _observe(self) -> dict[str, Any]:
        turns = self._turns
        return {
            **asdict(self.counters),
            "clients": len(self._sessions.known),
            "queued": self._queued,
            "queued_bytes": self._queued_bytes,
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
        self._queued, self._queued_bytes = self._queued + 1, self._queued_bytes + job.size
        self._executor.submit(job)

    def _has_room(self) -> bool:
        return self._queued_bytes < self.limits.queued_bytes and self._queued < self.limits.queued_messages

    def _read(self) -> None:
        for _ in range(_BURST):
            if not self._has_room():
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._receive(frames)

    def _receive(self, frames: Sequence[zmq.Frame]) -> None:
        identity = frames[0].bytes
        head = frames[1].bytes if len(frames) > 1 and len(frames[1]) == HEADER_BYTES else None
        answer = self._sessions.receive(identity, head, [f.buffer for f in frames[2:]], time.monotonic())
        if answer is not None:
            self._send(identity, answer)

    def _finished(self, job: Job, answer: Answer, *, last: bool = True) -> None:
        """Hand an answer over to the socket's thread (called in an executing one); `last`: none follows."""
        if last:
            self._sessions.finished(job, answer)
        if self._journal is not None and job.header.kind == Kind.CUT and answer.header.kind != FAILURE:
            number = int(unpack_text(job.parts[0])["number"])
            with contextlib.suppress(StoreError):  # without room it goes on as it was
                rotate(self._journal, number, self._service, self._sessions)
        self._answers.append((job, answer, last))
        with self._ring_lock, contextlib.suppress(zmq.ZMQError):  # closed: it has stopped
            self._ringer.send(b"")

    def _drain(self) -> None:
        """Send what has been executed."""
        while self._answers:
            job, answer, last = self._answers.popleft()
            if last:
                self._queued, self._queued_bytes = self._queued - 1, self._queued_bytes - job.size
            self._send(job.session.identity, answer)

    def _send(self, identity: bytes, answer: Answer) -> None:
        self.counters.sent_bytes += answer.payload.size
        message = [identity, encode(answer.header, answer.payload), *answer.parts]
        with contextlib.suppress(zmq.Again):  # of a slow reader: its next PING shows what it lacks
            self._socket.send_multipart(message, zmq.NOBLOCK, copy=False)
