"""The exchange of a worker that has an embedding worker, asked for rows by id as any other exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np

from satrap.batch import Batch, Jagged
from satrap.embedding.plan import BatchLookup
from satrap.embedding.workers import ClientThreads, EmbeddingService, PooledExchange
from satrap.embedding.workers.plan import PooledPlan
from satrap.exchange import Lookup, LookupRequest
from satrap.rpc.server.server import Server
from satrap.schema import Categorical, Schema
from tests.contract.parties import EXACT, PATIENT, SEED, TABLES, grouped, threads

SCHEMA = Schema(
    labels=["y"],
    features={t.name: Categorical(dim=t.dim, pooling="none", multi=True, separator="|") for t in TABLES},
)


class Embedded:
    """Makes of a request a batch of one sample in which each table is a feature that is not pooled.

    An update waits for the answer to its lookup, without which a worker has no gradients. What a batch cannot
    express goes to the shards straight, as all requests that are not pooled: a group that does not exist, an
    update without a lookup.
    """

    def __init__(self, exchange: Any) -> None:
        self._exchange = exchange
        self._plan = PooledPlan(SCHEMA, exchange.groups)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exchange, name)

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> Lookup[np.ndarray]:
        ticket = self._ticket(requests)
        if ticket is None:
            return self._exchange.lookup(requests, create=create)
        found: Future[list[np.ndarray]] = Future()

        def answered(future: Future[list[np.ndarray]]) -> None:
            if error := future.exception():
                found.set_exception(error)
            else:
                by_table = dict(zip(self._plan.jagged, future.result(), strict=True))
                groups = [self._exchange.groups[r.group].tables for r in requests]
                found.set_result([np.concatenate([by_table[t] for t in tables]) for tables in groups])

        pooled = self._exchange.lookup(ticket.requests, create=create)
        pooled.rows.add_done_callback(answered)
        return Lookup(requests, found, places=[pooled] if create else ())

    def apply(self, lookup: Lookup[np.ndarray], gradients: Sequence[np.ndarray], *, lr_scale: float) -> None:
        if not lookup.places:
            self._exchange.flush()
            self._exchange.apply(lookup, gradients, lr_scale=lr_scale)
            self._exchange.flush()
            return
        lookup.result()
        [pooled] = lookup.places
        lookup.places = ()  # a second update goes to the shards directly
        by_table = {t: np.empty((0, d.dim), np.float32) for t, d in zip("abc", TABLES, strict=True)}
        for request, rows in zip(lookup.requests, gradients, strict=True):
            tables = self._exchange.groups[request.group].tables
            by_table |= dict(zip(tables, np.split(rows, request.splits[1:-1]), strict=True))
        self._exchange.apply(pooled, [by_table[t] for t in self._plan.jagged], lr_scale=lr_scale)

    def _ticket(self, requests: Sequence[LookupRequest]) -> BatchLookup | None:
        groups = self._exchange.groups
        ids = {table.name: np.empty(0, np.uint64) for table in TABLES}
        for request in requests:
            known = request.group < len(groups)
            if not known or len(request.splits) != len(groups[request.group].tables) + 1:
                return None
            parts = np.split(request.ids, request.splits[1:-1])
            ids |= dict(zip(groups[request.group].tables, parts, strict=True))
        jagged = {name: Jagged(values, np.array([0, len(values)])) for name, values in ids.items()}
        return self._plan.ticket(Batch(1, jagged)) if requests else None


@contextmanager
def embedded(shards: int) -> Iterator[Any]:
    """Run shards and an embedding worker in threads; give the exchange of a worker."""
    with threads(shards) as servers:
        addresses = [server.address for server in servers]
        middle = Server("127.0.0.1:0", EmbeddingService(addresses), dispatcher=ClientThreads)
        about = grouped(seed=SEED, wire=EXACT, deadline=PATIENT, heartbeat=0.2)
        with middle:
            name = "embedding worker 0"
            made = Embedded(PooledExchange(name, middle.address, addresses, SCHEMA, TABLES, **about))
            yield made
            made.close()
