"""The service of an embedding worker: requests of workers, and counters."""

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
    """Creates a `Pooler` for each worker; its server needs `ClientThreads` as dispatcher.

    Args:
        shards: HOST:PORT of each shard.
        key: key of the cluster.

    Attributes:
        stop: ends the threads of the workers.
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
        self._poolers: dict[int, Pooler] = {}  # by client
        self._lock = threading.Lock()
        self._samples = 0  # of workers that have left

    def serves(self, client: int) -> bool:
        """Return whether a client's hello was accepted, and no newer worker has taken its rank."""
        return client in self._poolers

    def begin(self, client: int, header: Header, parts: Sequence[Buffer]) -> Begun:
        """Start a request of a worker; one thread calls this for each client.

        Raises:
            SatrapError: the request is rejected.
        """
        if header.kind == MessageKind.BYE:
            self.leave(client)
            return done(), lambda _: []
        if not parts and header.kind != MessageKind.FLUSH:
            raise StoreError("the embedding worker received a request without parts")
        if header.kind == MessageKind.HELLO:
            return self._greet(client, parts[0])
        pooler = self._poolers.get(client)
        if pooler is None:
            raise StoreError("the embedding worker received a request of a worker that it does not serve")
        match header.kind:
            case MessageKind.LOOKUP | MessageKind.PEEK:
                create = header.kind == MessageKind.LOOKUP
                return pooler.look_up(unpack_text(parts[0]), parts[1:], create=create)
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

    def _greet(self, client: int, hello: Buffer) -> Begun:
        """Create a worker's pooler; only the newest worker of a rank is served."""
        if client in self._poolers:
            self.leave(client)
            raise StoreError("the embedding worker received a second hello of the same client")
        pooler = Pooler(unpack_text(hello), self.shards, self.key)
        with self._lock:
            others = [other for other, its in self._poolers.items() if its.rank == pooler.rank]
            self._poolers[client] = pooler
        for other in others:
            threading.Thread(
                target=self.leave, args=(other,), name="satrap-embedding-end", daemon=True
            ).start()
        return done(), lambda _: [pack_text({"role": self.role})]

    def leave(self, client: int) -> None:
        """Serve a client no longer, and close its exchange with the shards; twice is fine."""
        with self._lock:
            pooler = self._poolers.pop(client, None)
            self._samples += 0 if pooler is None else pooler.samples
        if pooler is not None:
            with suppress(SatrapError):  # requests that wait for a lost shard get the error
                pooler.exchange.close()

    def close(self) -> None:
        """End the threads of all workers."""
        self.stop()

    def statistics(self) -> EmbeddingWorkerStatistics:
        """Return the counters; thread-safe."""
        with self._lock:
            poolers = list(self._poolers.values())
            samples = self._samples + sum(pooler.samples for pooler in poolers)
        waiting = sum(pooler.open for pooler in poolers)
        return EmbeddingWorkerStatistics(len(poolers), waiting, samples, self.observe())
