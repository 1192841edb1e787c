"""The process around a shard: one thread owns the socket, another executes requests in the order they came."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

import zmq

from satrap.errors import ConfigError, ExchangeError, SatrapError, StoreError
from satrap.exchange.servers import security
from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.servers.frames import (
    ANSWER,
    FAILURE,
    HEADER_BYTES,
    MAX_BYTES,
    MAX_PARTS,
    Buffer,
    Code,
    Digest,
    FrameError,
    Header,
    Kind,
    decode,
    encode,
)
from satrap.exchange.servers.payload import pack_text
from satrap.exchange.servers.service import Service
from satrap.exchange.servers.session import Answer, Session, Verdict

_NOTHING = Digest(0, 0, 0)
_KINDS = frozenset(Kind)
_TICK = 0.2
"""Seconds between looks at deadlines and at the wish to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a shard server accepts; beyond it, requests are refused or wait in the sender.

    Args:
        message_bytes: payload of one message, 256 MiB.
        queued_bytes: received and not yet executed, 1 GiB; then nothing is read until there is room.
        queued_messages: the same, counted, 4096.
        answer_bytes: answers a client has not acknowledged, 1 GiB.
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


@dataclass(frozen=True, slots=True)
class _Job:
    session: Session
    header: Header
    parts: Sequence[Buffer]
    size: int
    arrived: float


@dataclass(slots=True)
class _Counters:
    messages: int = 0
    malformed: int = 0
    repeated: int = 0
    refused: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0


@dataclass(slots=True)
class _Client:
    session: Session
    seen: float
    waiting: deque[_Job] = field(default_factory=deque)


class ShardServer:
    """One shard behind a socket.

    ```python
    with ShardServer("127.0.0.1:0") as server:     # port 0: any free one
        print(server.endpoint)                      # tcp://127.0.0.1:38211
    ```

    The first client's hello configures the tables; later ones must agree. A message that cannot be believed is
    dropped and counted, and answered with an error; it never ends the server. Requests of one client are executed
    in order, each exactly once; requests of all clients in order of arrival, except that in `sync` with several
    workers a request waits until the optimizer steps before it are complete.

    Args:
        listen: HOST:PORT. Anything but a loopback address needs a key.
        key: from `security.read_key`; connections are then encrypted and both sides proven to hold it.
        limits: see `Limits`.
        config: the tables, if they are not to come from a hello.

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
    ) -> None:
        security.check_listen(listen, key)
        self.limits = limits or Limits()
        self.counters = _Counters()
        self._service = Service(config, max_bytes=self.limits.message_bytes)
        self._clients: dict[int, _Client] = {}
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._queued, self._queued_bytes = 0, 0
        self._answers: deque[tuple[_Job, Answer, bool]] = deque()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._context = zmq.Context()
        self._door = security.Door(self._context, key) if key else None
        self._socket = self._open(listen, key)
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._bell = self._context.socket(zmq.PULL)
        self._bell.bind("inproc://answers")

    def _open(self, listen: str, key: security.Key | None) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 500)
        socket.setsockopt(zmq.MAXMSGSIZE, self.limits.message_bytes)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
        if key:
            key.protect_server(socket)
        try:
            socket.bind(f"tcp://{listen}")
        except zmq.ZMQError as error:
            socket.close(0)
            self._context.destroy(0)
            raise ConfigError(f"cannot listen on {listen}: {error.strerror}") from error
        return socket

    def start(self) -> ShardServer:
        """Serve in background threads until `stop`."""
        self._threads = [threading.Thread(target=self.run, name="satrap-shard-io", daemon=True)]
        self._threads[0].start()
        return self

    def stop(self) -> None:
        """Stop serving, after the request being executed; the rows are gone."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> ShardServer:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def run(self) -> None:
        """Serve in this thread until `stop` is called (from a signal handler or another thread)."""
        worker = threading.Thread(target=self._work, name="satrap-shard", daemon=True)
        worker.start()
        try:
            self._loop(worker)
        finally:
            self._jobs.put(None)
            worker.join()
            self._drain()
            for socket in (self._socket, self._bell, *([self._door.socket] if self._door else [])):
                socket.close()
            self._context.term()

    def request_stop(self) -> None:
        """Ask `run` to return soon; safe in a signal handler."""
        self._stopping.set()

    def _loop(self, worker: threading.Thread) -> None:
        poller = zmq.Poller()
        poller.register(self._bell, zmq.POLLIN)
        if self._door:
            poller.register(self._door.socket, zmq.POLLIN)
        while not self._stopping.is_set():
            if not worker.is_alive():
                raise ExchangeError("the thread that executes requests has died")
            poller.register(self._socket, zmq.POLLIN if self._has_room() else 0)
            for socket, _ in poller.poll(_TICK * 1000):
                if socket is self._socket:
                    self._read()
                elif socket is self._bell:
                    self._bell.recv()
                elif self._door:
                    self._door.answer()
            self._drain()

    def _has_room(self) -> bool:
        return self._queued_bytes < self.limits.queued_bytes and self._queued < self.limits.queued_messages

    def _read(self) -> None:
        for _ in range(64):
            if not self._has_room():
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._receive(frames)

    def _receive(self, frames: Sequence[zmq.Frame]) -> None:
        identity = frames[0].bytes
        self.counters.messages += 1
        try:
            if not 2 <= len(frames) <= MAX_PARTS + 2 or len(frames[1]) != HEADER_BYTES:
                raise FrameError("this is no satrap message")
            parts = [f.buffer for f in frames[2:]]
            header = decode(frames[1].bytes, parts, max_bytes=self.limits.message_bytes)
            if header.kind not in _KINDS:
                raise FrameError(f"a request of unknown kind {header.kind}", header=header)
            self._accept(identity, header, parts)
        except FrameError as error:
            if error.code in (Code.MALFORMED, Code.VERSION):
                self.counters.malformed += 1
            self._send(identity, *_failure(error.header or Header(0), error.code, error))

    def _accept(self, identity: bytes, header: Header, parts: Sequence[Buffer]) -> None:
        client = self._client(identity, header)
        session = client.session
        session.identity, client.seen = identity, time.monotonic()
        if header.kind == Kind.PING:
            pong = header.answer(acknowledged=session.next, step=session.done)
            self._send(identity, Answer(pong, (), _NOTHING))
            return
        if session.fenced:
            raise FrameError("another worker has taken this one's rank", Code.FENCED, header)
        if session.full(header, self.limits.answer_bytes):
            raise FrameError("too many answers wait to be acknowledged", Code.BUSY, header)
        self._dispatch(client, header, parts)

    def _dispatch(self, client: _Client, header: Header, parts: Sequence[Buffer]) -> None:
        session = client.session
        match session.admit(header):
            case Verdict.NEW:
                size = sum(memoryview(p).nbytes for p in parts)
                self.counters.received_bytes += size
                self._queued, self._queued_bytes = self._queued + 1, self._queued_bytes + size
                self._jobs.put(_Job(session, header, parts, size, time.monotonic()))
            case Verdict.ANSWERED:
                self.counters.repeated += 1
                self._send(session.identity, session.answer(header.sequence))
            case Verdict.GAP:  # a nudge: the client asks where we are, and sends again from there
                self._send(session.identity, Answer(Header(Kind.PING | ANSWER), (), _NOTHING))
            case Verdict.RUNNING | Verdict.FORGOTTEN:
                self.counters.repeated += 1

    def _client(self, identity: bytes, header: Header) -> _Client:
        known = self._clients.get(header.client)
        if header.kind not in (Kind.HELLO, Kind.PING, Kind.BYE):
            self._check_epoch(header)
        if known is not None:
            return known
        if header.kind != Kind.HELLO or header.sequence != 0:
            raise FrameError(
                "this shard does not know the client: it was restarted or has forgotten it",
                Code.UNKNOWN_CLIENT,
                header,
            )
        self._make_room(header)
        client = self._clients[header.client] = _Client(Session(header.client, identity), time.monotonic())
        return client

    def _check_epoch(self, header: Header) -> None:
        config = self._service.config
        if config is not None and header.epoch != config.map.epoch:
            raise FrameError(
                f"the request was made under epoch {header.epoch} of the shard map, this shard is at "
                f"epoch {config.map.epoch}",
                Code.EPOCH,
                header,
            )

    def _make_room(self, header: Header) -> None:
        if len(self._clients) < self.limits.clients:
            return
        oldest = min(self._clients.values(), key=lambda c: c.seen)
        if time.monotonic() - oldest.seen < self.limits.idle:
            raise FrameError(f"this shard already has {self.limits.clients} clients", Code.BUSY, header)
        del self._clients[oldest.session.client]

    def _drain(self) -> None:
        """Send what has been executed."""
        while self._answers:
            job, answer, forget = self._answers.popleft()
            self._queued, self._queued_bytes = self._queued - 1, self._queued_bytes - job.size
            job.session.keep(answer)
            self._send(job.session.identity, answer)
            if forget:
                self._clients.pop(job.session.client, None)

    def _send(self, identity: bytes, answer: Answer) -> None:
        self.counters.sent_bytes += answer.payload.size
        message = [identity, encode(answer.header, answer.payload), *answer.parts]
        try:
            self._socket.send_multipart(message, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            pass  # the client reads too slowly; its next PING shows what it lacks

    # -- the executing thread

    def _work(self) -> None:
        bell = self._context.socket(zmq.PUSH)
        bell.connect("inproc://answers")
        parked: dict[int, deque[_Job]] = {}
        while True:
            try:
                job = self._jobs.get(timeout=_TICK)
            except Empty:
                self._expire(parked, bell)
                continue
            if job is None:
                break
            if job.session.client in parked or self._must_wait(job):
                parked.setdefault(job.session.client, deque()).append(job)
                self._expire(parked, bell)
                continue
            before = self._service.board.completed
            self._execute(job, bell)
            if self._service.board.completed != before:
                self._wake(parked, bell)
        bell.close()
        if self._service.config is not None:
            self._service.store.close()

    def _must_wait(self, job: _Job) -> bool:
        gated = job.session.gated and job.header.kind not in (Kind.UPDATE, Kind.BYE, Kind.HELLO)
        return gated and job.header.step > self._service.board.completed

    def _wake(self, parked: dict[int, deque[_Job]], bell: zmq.Socket[bytes]) -> None:
        """Execute what waited for a step, client after client in the order they began to wait."""
        again = True
        while again:
            again = False
            for client, jobs in list(parked.items()):
                while jobs and not self._must_wait(jobs[0]):
                    before = self._service.board.completed
                    self._execute(jobs.popleft(), bell)
                    again = again or self._service.board.completed != before
                if not jobs:
                    del parked[client]

    def _expire(self, parked: dict[int, deque[_Job]], bell: zmq.Socket[bytes]) -> None:
        now = time.monotonic()
        for client, jobs in list(parked.items()):
            while jobs and now - jobs[0].arrived > self.limits.wait:
                job = jobs.popleft()
                missing = ", ".join(map(str, self._service.board.missing()))
                error = ExchangeError(
                    f"step {self._service.board.completed} is not complete: nothing from rank {missing}",
                    where=f"{Kind(job.header.kind).name.lower()} of rank {job.session.rank}",
                    why=f"the shard waited {self.limits.wait:g} s; in sync mode every rank must send its update",
                )
                self._finish(job, _failure(job.header, Code.DEADLINE, error), bell)
            if not jobs:
                del parked[client]

    def _execute(self, job: _Job, bell: zmq.Socket[bytes]) -> None:
        forget = job.header.kind == Kind.BYE
        try:
            parts = self._service.execute(job.session, job.header, job.parts)
            answer = Answer.of(job.header.answer(), parts)
            if job.header.kind == Kind.HELLO and job.session.gated:
                self._fence(job.session)
        except SatrapError as error:
            self.counters.refused += 1
            forget = forget or job.header.kind == Kind.HELLO
            answer = _failure(job.header, _code(error), error)
        self._finish(job, answer, bell, forget)

    def _fence(self, session: Session) -> None:
        """The newest worker of a rank is the only one."""
        for other in list(self._clients.values()):
            if other.session is not session and other.session.gated and other.session.rank == session.rank:
                other.session.fenced = True

    def _finish(self, job: _Job, answer: Answer, bell: zmq.Socket[bytes], forget: bool = False) -> None:
        self._answers.append((job, answer, forget))
        bell.send(b"")


def _code(error: SatrapError) -> Code:
    if isinstance(error, FrameError):
        return error.code
    if isinstance(error, StoreError):
        return Code.STORE
    return Code.CONFIG if isinstance(error, ConfigError) else Code.BUSY


def _failure(header: Header, code: Code, error: SatrapError) -> Answer:
    text = {"code": int(code), "what": error.what, "where": error.where, "why": error.why, "fix": error.fix}
    return Answer.of(header.answer(FAILURE), [pack_text(text)])
