"""The exchange of a worker that has an embedding worker."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch
from satrap.embedding.workers.plan import PooledRequest
from satrap.embedding.workers.tensors import pack_gradients, pack_tensors, unpack_rows, unpack_tensors
from satrap.errors import ExchangeError, SatrapError, StoreError
from satrap.exchange import Cut, Request, Snapshot, TableGroup
from satrap.exchange.servers import ClientOptions, ServersExchange, Wire, WorkerId
from satrap.exchange.servers.config import store_to_dict, tables_to_dicts
from satrap.exchange.traffic import Traffic
from satrap.rpc.client.client import Client
from satrap.rpc.wire.batches import pack_batch
from satrap.rpc.wire.frames import Buffer, Kind
from satrap.rpc.wire.text import pack_text, unpack_text
from satrap.schema import Schema, Table
from satrap.store import Chunk, StoreConfig

Rows = npt.NDArray[np.float32]

IN_FLIGHT = 64
"""Lookups and updates without an answer; one more waits for one of them."""


class PooledExchange:
    """Looks up and updates pooled tensors through an embedding worker.

    The embedding worker does what this worker would do: its lookups and updates reach the shards in the same
    order and of the same rank. Requests that are no `PooledRequest`, and all that concerns rows as such
    (snapshots, loading, statistics), go to the shards straight, after all that was issued before is applied.

    Args:
        name: of the embedding worker, for errors, for example "embedding worker 0".
        address: HOST:PORT of the embedding worker.
        shards: HOST:PORT of each shard, as the embedding worker has them.
        schema: the features, which say how ids are pooled.
        tables: the tables, each with an optimizer.
        store, mode, worker, options: as for `ServersExchange`.
        wire: number formats of pooled tensors and of rows, and of their gradients.

    Attributes:
        shards: the exchange with the shards, which waits for no steps.
        groups: the table groups of the shards.

    Raises:
        ConfigError: impossible arguments, or servers that are configured for something else.
        ExchangeError: a server cannot be reached or refuses the key.
    """

    def __init__(
        self,
        name: str,
        address: str,
        shards: Sequence[str],
        schema: Schema,
        tables: Sequence[Table],
        *,
        store: StoreConfig = StoreConfig(),
        wire: Wire = Wire(),
        mode: str = "hybrid",
        worker: WorkerId = WorkerId(),
        options: ClientOptions = ClientOptions(),
    ) -> None:
        self._wire, self._deadline = wire, options.deadline
        hello = {
            "schema": schema.to_dict(),
            "tables": tables_to_dicts(tables),
            "shards": len(shards),
            "wire": [wire.forward, wire.backward],
            "mode": mode,
            "deadline": options.deadline,
            **store_to_dict(store),
            **asdict(worker),
        }
        self.shards = ServersExchange(shards, tables, store=store, wire=wire, worker=worker, options=options)
        self.groups: Sequence[TableGroup] = self.shards.groups
        self._error: SatrapError | None = None
        self._traffic, self._staleness = Traffic(), _NO_STALENESS
        self._room = threading.BoundedSemaphore(IN_FLIGHT)
        self._number, self._closed = 0, False
        try:
            self._client = Client(name, address, hello=hello, options=options)
        except SatrapError:
            self.shards.close()
            raise

    def lookup(self, requests: Sequence[Request], *, create: bool) -> Future[list[Rows]]:
        """See `Exchange.lookup`; a `PooledRequest` is answered by float32 of its shape."""
        pooled, plain = _apart(requests)
        if not pooled:
            return self.shards.lookup(plain, create=create)
        future = self._look_up(pooled, create=create)
        return _joined(future, self.shards.lookup(plain, create=create)) if plain else future

    def _look_up(
        self, pooled: Sequence[PooledRequest], *, create: bool, rows: Sequence[Rows] | None = None
    ) -> Future[list[Rows]]:
        first = pooled[0]
        assert first.batch is not None
        number, self._number = self._number, self._number + 1
        if create:
            first.lookup.number = number
        batch = Batch(first.batch.size, first.batch.ids)
        parts = pack_batch(batch, {"number": number, "replay": rows is not None})
        if rows is not None:
            parts += pack_tensors(rows, "float32")
        found: Future[list[Rows]] = Future()
        found.add_done_callback(self._traffic.issue("lookup"))
        answer = self._ask(Kind.LOOKUP if create else Kind.PEEK, parts)
        answer.add_done_callback(partial(self._looked_up, pooled, found))
        return found

    def _looked_up(
        self, pooled: Sequence[PooledRequest], found: Future[list[Rows]], answer: Future[Sequence[Buffer]]
    ) -> None:
        try:
            first, *parts = answer.result()
            text = unpack_text(first)
            self._note_staleness(text)
            tensors = unpack_tensors(parts, [request.shape for request in pooled])
            pooled[0].lookup.ratio = float(text["ratio"])
        except (SatrapError, KeyError, ValueError) as error:
            found.set_exception(error if isinstance(error, SatrapError) else ExchangeError(str(error)))
        else:
            found.set_result(tensors)

    def prefetch(self, requests: Sequence[Request]) -> None:
        """See `Exchange.prefetch`; shards use the time that a lookup has to wait."""

    def update(
        self, requests: Sequence[Request], gradients: Sequence[Rows], *, lr_scale: float, finite: bool = False
    ) -> None:
        """See `Exchange.update`; updates come in the order of their lookups."""
        if self._error is not None:
            raise self._error
        pooled, plain = _apart(requests)
        number = pooled[0].lookup.number if pooled else None
        try:
            parts = pack_gradients(gradients[: len(pooled)], self._wire.backward) if pooled else []
        except StoreError as error:  # told by the next call, as what the shards refuse
            self._error = error
            return
        text = pack_text({"number": number, "lr_scale": lr_scale})
        done = self._traffic.issue("push")
        answer = self._ask(Kind.UPDATE, [text, *parts])
        answer.add_done_callback(self._note)
        answer.add_done_callback(done)
        if plain:
            self.shards.update(plain, gradients[len(pooled) :], lr_scale=lr_scale)

    def recall(self, requests: Sequence[Request], rows: Sequence[Rows]) -> list[Rows]:
        """Return what an open lookup found for each distinct id, in place of the tensors it was answered.

        Args:
            requests: of the lookup.
            rows: its answer.
        """
        pooled, _ = _apart(requests)
        if not pooled:
            return list(rows)
        _, *parts = self._ask(Kind.RECALL, [pack_text({"number": pooled[0].lookup.number})]).result()
        return [*unpack_rows(parts), *rows[len(pooled) :]]

    def replay(self, requests: Sequence[Request], rows: Sequence[Rows], groups: int) -> Future[list[Rows]]:
        """Issue a lookup that takes these rows, not those of the shards.

        Args:
            requests: of a batch.
            rows: per table group float32[distinct ids, dim], then the answers to the other requests.
            groups: how many table groups.
        """
        pooled, plain = _apart(requests)
        future = self._look_up(pooled, create=True, rows=rows[:groups])
        others: Future[list[Rows]] = Future()
        others.set_result(list(rows[groups:]))
        return _joined(future, others) if plain else future

    def flush(self) -> None:
        """See `Exchange.flush`."""
        [text] = self._ask(Kind.FLUSH).result()
        self._note_staleness(unpack_text(text))
        self.shards.flush()
        if self._error is not None:
            raise self._error

    def snapshot(self) -> Snapshot:
        """See `Exchange.snapshot`."""
        self.flush()
        return self.shards.snapshot()

    def cut(self, *, delta: bool | None = None) -> Cut:
        """See `Exchange.cut`."""
        self.flush()
        return self.shards.cut(delta=delta)

    def read(self, url: str, *, follow: bool = False, exact: bool = False) -> None:
        """See `Exchange.read`."""
        self.shards.read(url, follow=follow, exact=exact)

    def load(self, table: str, chunk: Chunk) -> None:
        """See `Exchange.load`."""
        self.shards.load(table, chunk)

    def clear(self) -> None:
        """See `Exchange.clear`."""
        self.flush()
        self.shards.clear()

    def statistics(self) -> Mapping[str, Any]:
        """See `Exchange.statistics`."""
        return {**self.shards.statistics(), "exchange": self.traffic()}

    def traffic(self) -> Mapping[str, Any]:
        """See `Exchange.traffic`.

        Bytes and messages are those to and from the embedding worker and the shards. Staleness is what the
        shards told the embedding worker. A push counts as answered when it is on its way to the shards.
        """
        client, shards = self._client.traffic(), self.shards.traffic()
        own = self._traffic.report() | {"staleness": self._staleness}
        return own | {name: count + shards[name] for name, count in client.items()}

    def close(self) -> None:
        """See `Exchange.close`. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        try:
            self._client.close()
        finally:
            self.shards.close()

    def _ask(self, kind: Kind, parts: Sequence[Buffer] = ()) -> Future[Sequence[Buffer]]:
        if not self._room.acquire(timeout=2 * self._deadline):
            raise ExchangeError(f"nothing was answered for {2 * self._deadline:g} s")
        try:
            answer = self._client.ask(kind, parts)
        except SatrapError:
            self._room.release()
            raise
        answer.add_done_callback(lambda _: self._room.release())
        return answer

    def _note(self, answer: Future[Sequence[Buffer]]) -> None:
        error = answer.exception()
        if isinstance(error, SatrapError) and self._error is None:
            self._error = error

    def _note_staleness(self, text: Mapping[str, Any]) -> None:
        self._staleness = {
            whose: {int(missed): int(count) for missed, count in counts.items()}
            for whose, counts in text["staleness"].items()
        }


_NO_STALENESS: Mapping[str, Mapping[int, int]] = {"own": {}, "others": {}}


def _apart(requests: Sequence[Request]) -> tuple[list[PooledRequest], list[Request]]:
    """Return the pooled requests, which come first, and the others."""
    pooled = [request for request in requests if isinstance(request, PooledRequest)]
    return pooled, list(requests[len(pooled) :])


def _joined(*futures: Future[list[Rows]]) -> Future[list[Rows]]:
    """Return the future of all results, one after another."""
    joined: Future[list[Rows]] = Future()
    lock, left = threading.Lock(), [len(futures)]

    def answered(one: Future[list[Rows]]) -> None:
        with lock:
            left[0] -= 1
            last, error = left[0] == 0, one.exception()
            if joined.done():
                return
            if error is not None:
                joined.set_exception(error)
            elif last:
                joined.set_result([rows for future in futures for rows in future.result()])

    for future in futures:
        future.add_done_callback(answered)
    return joined
