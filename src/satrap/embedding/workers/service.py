"""The service of an embedding worker: sessions of workers, and counters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from satrap.embedding.workers.pooler import Begun, Pooler, done
from satrap.errors import ConfigError, SatrapError, StoreError
from satrap.rpc import Key
from satrap.rpc.server.handler import Handler
from satrap.rpc.server.statistics import ServerStatistics
from satrap.rpc.wire.frames import Buffer, Header, MessageKind
from satrap.rpc.wire.text import pack_text, unpack_text


@dataclass(frozen=True, slots=True)
class EmbeddingWorkerStatistics:
    """Connected workers, lookups that wait for their update, pooled samples, and counters of the server."""

    workers: int
    open: int
    samples: int
    server: ServerStatistics


class EmbeddingService(Handler):
    """Creates a `WorkerSession` for each worker; its server needs `ClientThreads` as dispatcher.

    Args:
        shards: HOST:PORT of each shard.
        key: key of the cluster.

    Attributes:
        stop: ends the threads of the sessions.
    """

    role = "embedding-worker"
    kinds = (
        MessageKind.HELLO,
        MessageKind.LOOKUP,
        MessageKind.PEEK,
        MessageKind.UPDATE,
        MessageKind.FLUSH,
        MessageKind.RECALL,
        MessageKind.BYE,
    )

    def __init__(self, shards: Sequence[str], key: Key | None = None) -> None:
        self.shards, self.key = tuple(shards), key
        self.stop: Callable[[], None] = lambda: None
        self._sessions: dict[int, WorkerSession] = {}
        self._lock = threading.Lock()
        self._samples = 0

    def session(self, client: int) -> WorkerSession:
        """Return a new session."""
        with self._lock:
            session = self._sessions[client] = WorkerSession(self, client)
        return session

    def replace(self, session: WorkerSession) -> None:
        """End older sessions of the same rank: only the newest worker of a rank is served."""
        with self._lock:
            others = [s for s in self._sessions.values() if s is not session and s.rank == session.rank]
        for other in others:
            threading.Thread(target=other.close, name="satrap-embedding-end", daemon=True).start()

    def leave(self, session: WorkerSession) -> None:
        """Remove a session."""
        with self._lock:
            if self._sessions.pop(session.client, None) is not None:
                self._samples += session.samples

    def close(self) -> None:
        """End all sessions."""
        self.stop()

    def statistics(self) -> EmbeddingWorkerStatistics:
        """Return the counters; thread-safe."""
        with self._lock:
            sessions = list(self._sessions.values())
            samples = self._samples + sum(session.samples for session in sessions)
        return EmbeddingWorkerStatistics(
            workers=sum(session.rank is not None for session in sessions),
            open=sum(session.open for session in sessions),
            samples=samples,
            server=self.observe(),
        )


class WorkerSession:
    """The requests of one worker.

    Args:
        service: service of the session.
        client: number of the client.

    Attributes:
        closed: whether the session has ended.
    """

    def __init__(self, service: EmbeddingService, client: int) -> None:
        self._service, self.client = service, client
        self._pooler: Pooler | None = None
        self._closing = threading.Lock()
        self.closed = False

    @property
    def rank(self) -> int | None:
        """Rank of the worker, None before its hello."""
        return None if self._pooler is None else self._pooler.rank

    @property
    def open(self) -> int:
        """Lookups that wait for their update."""
        return 0 if self._pooler is None else self._pooler.open

    @property
    def samples(self) -> int:
        """Samples looked up."""
        return 0 if self._pooler is None else self._pooler.samples

    def begin(self, header: Header, parts: Sequence[Buffer]) -> Begun:
        """Start a request.

        Raises:
            SatrapError: the request is rejected.
        """
        if header.kind == MessageKind.BYE:
            self.close()
            return done(), lambda _: []
        if not parts and header.kind != MessageKind.FLUSH:
            raise StoreError("the embedding worker received a request without parts")
        if header.kind == MessageKind.HELLO:
            return self._greet(parts[0])
        if self._pooler is None:
            raise StoreError("the embedding worker received a request before it accepted a hello")
        return self._execute(self._pooler, header.kind, parts)

    def _greet(self, hello: Buffer) -> Begun:
        try:
            if self._pooler is not None:
                raise StoreError("the embedding worker received a second hello of the same client")
            self._pooler = Pooler(unpack_text(hello), self._service.shards, self._service.key)
        except BaseException:
            self.close()
            raise
        self._service.replace(self)
        return done(), lambda _: [pack_text({"role": self._service.role})]

    def _execute(self, pooler: Pooler, kind: int, parts: Sequence[Buffer]) -> Begun:
        match kind:
            case MessageKind.LOOKUP | MessageKind.PEEK:
                return pooler.look_up(unpack_text(parts[0]), parts[1:], create=kind == MessageKind.LOOKUP)
            case MessageKind.UPDATE:
                return pooler.update(unpack_text(parts[0]), parts[1:])
            case MessageKind.RECALL:
                return pooler.recall(unpack_text(parts[0]))
            case MessageKind.FLUSH:
                return pooler.flush()
        raise ConfigError(
            "the request needs a shard, but was sent to an embedding worker",
            fix="give the address of a shard",
        )

    def close(self) -> None:
        """Close the exchange with the shards. Closing twice is fine."""
        with self._closing:
            if self.closed:
                return
            self.closed = True
        self._service.leave(self)
        if self._pooler is not None:
            with suppress(SatrapError):  # requests that wait for a lost shard get the error
                self._pooler.exchange.close()
