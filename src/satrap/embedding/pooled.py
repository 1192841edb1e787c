"""Features whose rows are pooled by whoever holds them, because vectors are fewer bytes than rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch
from satrap.embedding.plan import EmbeddingPlan, Span, Ticket
from satrap.exchange import Request, TableGroup
from satrap.exchange.lookup import Bags
from satrap.exchange.servers import Wire
from satrap.schema import Schema

POOLS = ("sum", "mean", "sqrtn")
"""Poolings that whoever holds the rows can do."""


class SharedPoolingPlan(EmbeddingPlan):
    """Asks for vectors in place of rows, where the exchange can pool and this sends less.

    To the model's side a pooled feature is one with exactly one id per sample: its vector.

    Args:
        schema: the features.
        groups: the exchange's table groups, in order.
        tables: the tables that the exchange can pool.
        wire: number formats of rows, vectors and gradients on their way.
    """

    def __init__(
        self, schema: Schema, groups: Sequence[TableGroup], tables: Collection[str], wire: Wire
    ) -> None:
        super().__init__(schema, groups)
        self._row_bytes = [wire.row_bytes(group.dim) for group in self.groups]
        self._pools = [
            {
                number: names
                for number, (table, names) in enumerate(zip(group.tables, features, strict=True))
                if table in tables and all(schema.categorical[name].pooling in POOLS for name in names)
            }
            for group, features in zip(self.groups, self._features, strict=True)
        ]

    def ticket(self, batch: Batch) -> Ticket:
        """See `EmbeddingPlan.ticket`."""
        plain = super().ticket(batch)
        requests, inverses, spans = list(plain.requests), list(plain.inverses), dict(plain.spans)
        pooled: set[str] = set()
        for number, request in enumerate(plain.requests):
            bags, names = self._bags(plain, number)
            if not bags:
                continue
            pooled.update(names)
            requests[number] = asked = replace(request, bags=bags)
            places = _places(asked, self._features[number], names, plain.inverses[number], spans, batch.size)
            inverses[number] = np.concatenate(list(places.values()))
            used = 0
            for name, own in places.items():
                spans[name] = Span(number, used, used := used + len(own))
        one = [
            all(name in pooled or _single(batch, name) for of_table in features for name in of_table)
            for features in self._features
        ]
        return Ticket(batch, requests, inverses, spans, one, frozenset(pooled))

    def _bags(self, ticket: Ticket, number: int) -> tuple[list[Bags], set[str]]:
        """Return the bags of the tables of a group that are better pooled, and their features."""
        request, bags, chosen = ticket.requests[number], list[Bags](), set[str]()
        for table, names in self._pools[number].items():
            own = [self._bag(ticket, name, table) for name in names]
            ids = int(request.splits[table + 1] - request.splits[table])
            vectors = sum(bag.size for bag in own)
            if sends_less(ids, vectors, self._row_bytes[number], sum(map(_bytes, own))):
                bags += own
                chosen.update(names)
        return bags, chosen

    def _bag(self, ticket: Ticket, name: str, table: int) -> Bags:
        span, jagged = ticket.spans[name], ticket.batch.ids[name]
        offsets = np.arange(ticket.batch.size + 1) if jagged.offsets is None else jagged.offsets
        inverse = ticket.inverses[span.group][span.start : span.stop]
        first = np.int32(ticket.requests[span.group].splits[table])
        pooling = self.schema.categorical[name].pooling
        return Bags(table, inverse - first, offsets, jagged.weights, pooling)  # type: ignore[arg-type]


def _bytes(bag: Bags) -> float:
    return bag_bytes(len(bag.inverse), len(bag.offsets), 0 if bag.weights is None else len(bag.weights))


def _single(batch: Batch, name: str) -> bool:
    return batch.ids[name].offsets is None and batch.ids[name].weights is None


def _places(
    request: Request,
    features: Sequence[Sequence[str]],
    pooled: Collection[str],
    inverse: npt.NDArray[np.int32],
    spans: Mapping[str, Span],
    size: int,
) -> dict[str, npt.NDArray[np.int32]]:
    """Return, by feature, the positions of its rows or vectors in the answer to a request with bags."""
    counts = np.diff(request.splits) * request.pooled
    shift = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    vector = len(request.ids) - int(shift[-1])
    found = {}
    for table, names in enumerate(features):
        for name in names:
            if name in pooled:
                found[name] = np.arange(vector, vector := vector + size, dtype=np.int32)
            else:
                found[name] = inverse[spans[name].start : spans[name].stop] - shift[table]
    return found


def bag_bytes(ids: float, offsets: float, weights: float = 0) -> float:
    """Return the bytes that say how to pool: 4 for each id of a batch and each weight, 8 for each offset."""
    return 4 * ids + 8 * offsets + 4 * weights


def sends_less(rows: float, vectors: float, row_bytes: float, beside: float) -> bool:
    """Return whether pooled vectors take fewer bytes than rows.

    Args:
        rows: number of distinct ids of a batch.
        vectors: samples, for each feature.
        row_bytes: those of a row or vector and of its gradient.
        beside: bytes that say how to pool, see `bag_bytes`.
    """
    return row_bytes * (rows - vectors) > beside
