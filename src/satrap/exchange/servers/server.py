"""The socket of a shard: receives, checks and orders requests, sends answers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import zmq

from satrap.errors import ConfigError, ExchangeError
from satrap.exchange.servers import security
from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.servers.executor import Executor, Job, failure
from satrap.exchange.servers.frames import (
    ANSWER,
    FAILURE,
    HEADER_BYTES,
    MAX_BYTES,
    MAX_PARTS,
    Buffer,
    Code,
    FrameError,
    Header,
    Kind,
    decode,
    encode,
)
from satrap.exchange.servers.service import Service
from satrap.exchange.servers.session import Answer, Session, Verdict

_KINDS = frozenset(Kind)
EXECUTED = tuple(kind for kind in Kind if kind < Kind.OPEN)
"""Requests to a store."""
_TICK = 500
"""Milliseconds between looks at the wish to stop, when a signal handler asks for it."""
_BURST = 64
"""Messages read before answers are sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a shard server accepts; beyond it, requests are refused or wait in the sender.

    Args:
        message_bytes: payload of one message, 256 MiB.
        queued_bytes: received and not yet executed, 1 GiB; then nothing is read until there is room.
        queued_messages: the same, counted, 4096.
        answer_bytes: answers one client has not acknowledged, 1 GiB.
        clients: that are known at a time, 1024; idle ones make room.
        idle: seconds after which a silent client may be forgotten, 3600.
        wait: seconds a request of `sync` waits for the other ranks, 25.
    """

    message_bytes: int = MAX_BYTES
    queued_bytes: int = 1 << 30
    queued_messages: int = 4096
    answer_bytes: int = 1 << 30
    clients: int = 1024
    idle: float = 3600.0
    wait: float = 25.0


@dataclass(slots=True)
class Counters:
    """What a server has seen: messages, those that were malformed or repetitions, payload bytes both ways."""

    messages: int = 0
    malformed: int = 0
    repeated: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0


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

    Attributes:
        address: HOST:PORT it listens on.
        counters: see `Counters`.

    Raises:
        ConfigError: an address that cannot be used, or one open to others without a key.
    """

    def __init__(
        self,
        listen: str,
        *,
        key: security.Key | None = None,
        limits: Limits | None = None,
        config: ShardConfig | None = None,
        service: Service | None = None,
    ) -> None:
        security.check_listen(listen, key)
        self.limits, self.counters = limits or Limits(), Counters()
        self._service = service or Service(config, max_bytes=self.limits.message_bytes)
        self._service.observe = self._observe
        self._sessions: dict[int, Session] = {}
        self._queued, self._queued_bytes = 0, 0
        self._answers: deque[tuple[Job, Answer]] = deque()
        self._stopping = threading.Event()
        self._executor: Executor | None = None
        self._started = time.monotonic()
        self._thread: threading.Thread | None = None
        self._context = zmq.Context()
        self._door = security.Door(self._context, key) if key else None
        self._socket = self._open(listen, key)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://")
        self._bell = self._context.socket(zmq.PULL)
        self._bell.bind("inproc://bell")
        self._ringer = self._context.socket(zmq.PUSH)  # of the executing thread
        self._ringer.connect("inproc://bell")

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
        executor = self._executor = Executor(self._service, self._finished, wait=self.limits.wait)
        try:
            self._loop(executor)
        finally:
            executor.stop()
            self._drain()
            self._close()

    def _close(self) -> None:
        for socket in (self._socket, self._ringer, self._bell, *([self._door.socket] if self._door else [])):
            socket.close()

    def _loop(self, executor: Executor) -> None:
        poller = zmq.Poller()
        poller.register(self._bell, zmq.POLLIN)
        if self._door:
            poller.register(self._door.socket, zmq.POLLIN)
        while not self._stopping.is_set():
            if not executor.alive:
                raise ExchangeError("the thread that executes requests has died")
            poller.register(self._socket, zmq.POLLIN if self._has_room() else 0)
            for socket, _ in poller.poll(_TICK):
                if socket is self._socket:
                    self._read(executor)
                elif socket is self._bell:
                    self._bell.recv()
                elif self._door:
                    self._door.answer()
            self._drain()

    def statistics(self) -> dict[str, Any]:
        """Return the store's counters (none before the first hello), and under `server` its own.

        Those are the `Counters`; `clients` known; requests and bytes `queued` now; requests executed, by
        kind, and `refused`; `busy_seconds` spent executing of the `seconds` it has been there; optimizer
        `steps` that `sync` with several workers has completed; and which `shard` it is. Any thread may
        call it.
        """
        return self._service.statistics()

    def _observe(self) -> dict[str, Any]:
        executor = self._executor
        return {
            **asdict(self.counters),
            "clients": len(self._sessions),
            "queued": self._queued,
            "queued_bytes": self._queued_bytes,
            "requests": {k.name.lower(): executor.executed[k] if executor else 0 for k in EXECUTED},
            "refused": executor.refused if executor else 0,
            "busy_seconds": executor.busy if executor else 0.0,
            "seconds": time.monotonic() - self._started,
            "steps": self._service.board.completed,
            "shard": "" if self._service.config is None else str(self._service.config.shard),
        }

    def _has_room(self) -> bool:
        return self._queued_bytes < self.limits.queued_bytes and self._queued < self.limits.queued_messages

    def _read(self, executor: Executor) -> None:
        for _ in range(_BURST):
            if not self._has_room():
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._receive(frames, executor)

    def _receive(self, frames: Sequence[zmq.Frame], executor: Executor) -> None:
        identity = frames[0].bytes
        self.counters.messages += 1
        try:
            if not 2 <= len(frames) <= MAX_PARTS + 2 or len(frames[1]) != HEADER_BYTES:
                raise FrameError("this is no satrap message")
            parts = [f.buffer for f in frames[2:]]
            header = decode(frames[1].bytes, parts, max_bytes=self.limits.message_bytes)
            if header.kind not in _KINDS:
                raise FrameError(f"a request of unknown kind {header.kind}", header=header)
            self._accept(identity, header, parts, executor)
        except FrameError as error:
            self.counters.malformed += error.code in (Code.MALFORMED, Code.VERSION)
            self._send(identity, failure(error.header or Header(0), error.code, error))

    def _accept(self, identity: bytes, header: Header, parts: Sequence[Buffer], executor: Executor) -> None:
        if header.kind not in (Kind.HELLO, Kind.PING, Kind.BYE):
            self._check_epoch(header)
        session = self._session(identity, header)
        session.identity, session.seen = identity, time.monotonic()
        if header.kind == Kind.PING:
            self._send(identity, Answer.of(header.answer(acknowledged=session.next, step=session.done)))
            return
        if session.fenced:
            raise FrameError("another worker has taken this one's rank", Code.FENCED, header)
        if session.full(header, self.limits.answer_bytes):
            raise FrameError("too many answers wait to be acknowledged", Code.BUSY, header)
        match session.admit(header):
            case Verdict.NEW:
                size = sum(memoryview(p).nbytes for p in parts)
                self.counters.received_bytes += size
                self._queued, self._queued_bytes = self._queued + 1, self._queued_bytes + size
                executor.submit(Job(session, header, parts, size, time.monotonic()))
            case Verdict.GAP:  # a nudge: the client asks where we are, and sends again from there
                self._send(identity, Answer.of(Header(Kind.PING | ANSWER)))
            case Verdict.ANSWERED:
                self.counters.repeated += 1
                self._send(identity, session.answer(header.sequence))
            case Verdict.RUNNING | Verdict.FORGOTTEN:
                self.counters.repeated += 1

    def _session(self, identity: bytes, header: Header) -> Session:
        known = self._sessions.get(header.client)
        if known is not None:
            return known
        if header.kind != Kind.HELLO or header.sequence != 0:
            raise FrameError(
                "the shard does not know this client: it was restarted or has forgotten it",
                Code.UNKNOWN_CLIENT,
                header,
            )
        self._make_room(header)
        session = self._sessions[header.client] = Session(header.client, identity)
        return session

    def _check_epoch(self, header: Header) -> None:
        config = self._service.config
        if config is not None and header.epoch != config.map.epoch:
            raise FrameError(
                f"the request was made under epoch {header.epoch} of the shard map, the shard is at "
                f"epoch {config.map.epoch}",
                Code.EPOCH,
                header,
            )

    def _make_room(self, header: Header) -> None:
        if len(self._sessions) < self.limits.clients:
            return
        oldest = min(self._sessions.values(), key=lambda s: s.seen)
        if time.monotonic() - oldest.seen < self.limits.idle:
            raise FrameError(f"the shard already has {self.limits.clients} clients", Code.BUSY, header)
        del self._sessions[oldest.client]

    def _finished(self, job: Job, answer: Answer) -> None:
        """Hand an answer over to the socket's thread (called in the executing one)."""
        self._answers.append((job, answer))
        self._ringer.send(b"")

    def _drain(self) -> None:
        """Send what has been executed."""
        while self._answers:
            job, answer = self._answers.popleft()
            session = job.session
            self._queued, self._queued_bytes = self._queued - 1, self._queued_bytes - job.size
            session.keep(answer)
            self._send(session.identity, answer)
            refused = answer.header.kind == FAILURE
            if job.header.kind == Kind.BYE or (job.header.kind == Kind.HELLO and refused):
                self._sessions.pop(session.client, None)
            elif job.header.kind == Kind.HELLO and session.gated:
                self._fence(session)

    def _fence(self, session: Session) -> None:
        """The newest worker of a rank is the only one."""
        for other in self._sessions.values():
            if other is not session and other.gated and other.rank == session.rank:
                other.fenced = True

    def _send(self, identity: bytes, answer: Answer) -> None:
        self.counters.sent_bytes += answer.payload.size
        message = [identity, encode(answer.header, answer.payload), *answer.parts]
        with contextlib.suppress(zmq.Again):  # of a slow reader: its next PING shows what it lacks
            self._socket.send_multipart(message, zmq.NOBLOCK, copy=False)
