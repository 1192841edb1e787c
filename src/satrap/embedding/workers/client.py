"""The exchange of a worker with an embedding worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import KW_ONLY, asdict, dataclass
from functools import partial
from typing import Any

from satrap.batch import Batch
from satrap.embedding.workers.plan import PooledRequest
from satrap.errors import ExchangeError, SatrapError, StoreError
from satrap.exchange import Exchange, LookupRequest, Telemetry
from satrap.exchange.lookup import Array, Lookup, answered, joined
from satrap.exchange.protocol import Pooling, StepVerdict
from satrap.exchange.servers import ClientOptions, ServersExchange, Wire, WorkerId
from satrap.exchange.servers.config import store_to_dict, tables_to_dicts
from satrap.exchange.wire.formats import wire_bytes
from satrap.exchange.wire.rows import pack_gradients, pack_tensors, unpack_tensors
from satrap.rpc.client.client import Client
from satrap.rpc.wire.batches import pack_batch
from satrap.rpc.wire.frames import Buffer, MessageKind
from satrap.rpc.wire.text import pack_text, unpack_text
from satrap.schema import Schema, Table
from satrap.store import StoreConfig
from satrap.store.statistics import summed


@dataclass(eq=False, slots=True)
class PooledLookup(Lookup[Array]):
    """A lookup of pooled tensors.

    Args:
        number: id of the lookup at the embedding worker.
        others: the lookup of the requests that went directly to the shards.
    """

    _: KW_ONLY
    number: int
    others: Lookup[Any]


class PooledExchange(Exchange):
    """Looks up and updates pooled tensors through an embedding worker.

    The embedding worker acts for this worker: its lookups and updates reach the shards in the same order and
    with the same rank. Requests that are not a `PooledRequest`, and operations on rows (snapshots, loading,
    statistics), go directly to the shards, after all earlier requests have been applied.

    Args:
        name: of the embedding worker, for errors, for example "embedding worker 0".
        address: HOST:PORT of the embedding worker.
        shards: HOST:PORT of each shard, in the same order as at the embedding worker.
        schema: the features, which define how ids are pooled.
        tables: the tables, each with an optimizer.
        store, mode, worker, options: as for `ServersExchange`.
        wire: number formats of pooled tensors and of rows, and of their gradients.

    Attributes:
        shards: the exchange with the shards, which does not wait for steps.
        groups: the table groups of the shards.

    Raises:
        ConfigError: arguments are invalid, or servers are configured differently.
        ExchangeError: a server cannot be reached or rejects the key.
    """

    collective = False

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
        self._wire, self._number, self._closed = wire, 0, False
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
        self.groups = self.shards.groups
        names = frozenset(table.name for table in tables)
        self.pooling = Pooling("embedding worker", names, partial(wire_bytes, wire))
        self._replays: deque[Sequence[Array]] = deque()
        try:
            self._client = Client(name, {0: address}, {0: hello}, options=options)
        except SatrapError:
            self.shards.close()
            raise
        below = self.shards.telemetry
        self.telemetry = Telemetry(
            below.statistics, lambda: summed([self._client.transfer(), below.transfer()])
        )
        self.rows = copy(self.shards.rows)
        self.rows.flush = self.flush  # the embedding worker has updates that the shards do not have yet

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> Lookup[Any]:
        """See `Exchange.lookup`; the result of a `PooledRequest` is float32 of its shape."""
        pooled = [request for request in requests if isinstance(request, PooledRequest)]
        plain = requests[len(pooled) :]  # pooled requests come first
        if not pooled:
            return self.shards.lookup(plain, create=create)
        rows: Sequence[Array] | None = None
        others: Lookup[Any] = answered((), ())
        if create and self._replays:
            known = self._replays.popleft()
            rows, others = known[: len(known) - len(plain)], answered(plain, known[len(known) - len(plain) :])
        number, self._number = self._number, self._number + 1
        parts = self._pack(pooled[0].batch, number, rows)
        answer = self._client.ask(0, MessageKind.LOOKUP if create else MessageKind.PEEK, parts, limited=True)
        answer.add_done_callback(self.telemetry.meter.issue("lookup"))
        if plain and rows is None:
            others = self.shards.lookup(plain, create=create)
        tensors = joined([answer, others.rows], partial(self._unpack, pooled))
        lookup = PooledLookup(requests, tensors, self, number=number, others=others)
        lookup.recall = lambda: [*self._recall(number), *others.result()]
        return lookup

    def _pack(self, batch: Batch | None, number: int, rows: Sequence[Array] | None) -> list[Buffer]:
        assert batch is not None
        parts = pack_batch(Batch(batch.size, batch.ids), {"number": number, "replay": rows is not None})
        return parts if rows is None else parts + pack_tensors(rows, "float32")

    def _unpack(
        self, pooled: Sequence[PooledRequest], answer: Sequence[Buffer], others: Sequence[Array]
    ) -> list[Array]:
        """Return the tensors of a response, then the rows that came directly from the shards."""
        try:
            first, *parts = answer
            text = unpack_text(first)
            self._note_staleness(text)
            pooled[0].found.ratio = float(text["ratio"])
            return [*unpack_tensors(parts, [request.shape for request in pooled]), *others]
        except (KeyError, ValueError) as error:
            raise ExchangeError(str(error)) from error

    def replay(self, lookups: Iterable[Sequence[Array]]) -> None:
        """See `CanReplay.replay`. The embedding worker gets the rows and pools them."""
        self._replays.extend(lookups)

    def _recall(self, number: int) -> list[Array]:
        """Return the rows of an open lookup, one per unique id."""
        _, *parts = self._client.ask(0, MessageKind.RECALL, [pack_text({"number": number})]).result()
        return unpack_tensors(parts)

    def prefetch(self, requests: Sequence[LookupRequest]) -> None:
        """Do nothing: shards prefetch while a lookup waits."""

    def apply(
        self,
        lookup: Lookup[Any],
        gradients: Sequence[Array],
        *,
        lr_scale: float,
        verdict: StepVerdict | None = None,
    ) -> None:
        """See `Exchange.apply`; updates come in the order of their lookups."""
        self._client.raise_error()
        gradients = StepVerdict.applied(verdict, gradients)
        number, parts, pooled = None, list[Buffer](), 0
        others = lookup if gradients else Lookup[Any](())
        if gradients and isinstance(lookup, PooledLookup):
            lookup.check(self)
            number, others = lookup.number, lookup.others
            pooled = len(gradients) - len(others.requests)
            try:
                parts = pack_gradients(gradients[:pooled], self._wire.backward)
            except StoreError as error:  # the next call raises it, as if the shards had rejected the update
                self._client.error = error
                return
        text = pack_text({"number": number, "lr_scale": lr_scale})
        done = self.telemetry.meter.issue("push")
        answer = self._client.ask(0, MessageKind.UPDATE, [text, *parts], limited=True)
        answer.add_done_callback(self._client.note)
        answer.add_done_callback(done)
        if others.requests:
            self.shards.apply(others, gradients[pooled:], lr_scale=lr_scale)

    def flush(self) -> None:
        """See `Exchange.flush`."""
        [[text]] = self._client.flush()
        self._note_staleness(unpack_text(text))
        self.shards.flush()

    def close(self) -> None:
        """See `Exchange.close`. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        with suppress(SatrapError):  # lost, or it serves a newer worker of this rank
            self._client.close()
        self.shards.close()

    def _note_staleness(self, text: Mapping[str, Any]) -> None:
        """Record the staleness that the shards reported to the embedding worker."""
        counts = (
            {int(missed): int(count) for missed, count in text["staleness"][whose].items()}
            for whose in ("own", "others")
        )
        self.telemetry.meter.measured(*counts)
