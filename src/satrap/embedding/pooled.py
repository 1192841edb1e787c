"""Pools features at the owner of the rows if one vector per sample is smaller than the rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch
from satrap.embedding.plan import BatchLookup, EmbeddingPlan, Lookups, Span
from satrap.exchange import LookupRequest, TableGroup
from satrap.exchange.lookup import Bags
from satrap.exchange.protocol import Pooling
from satrap.schema import Schema

POOLS = ("sum", "mean", "sqrtn")
"""Pooling modes that the owner of the rows supports."""


class SharedPoolingPlan(EmbeddingPlan):
    """Requests vectors instead of rows if the exchange can pool and this sends fewer bytes.

    On the model's side, a pooled feature looks like a feature with exactly one id per sample: its vector.
    `pooling` names the tables that the exchange can pool, and the sizes of their rows.
    """

    def __init__(self, schema: Schema, groups: Sequence[TableGroup], pooling: Pooling) -> None:
        super().__init__(schema, groups)
        self._row_bytes = [pooling.row_bytes(group.dim) for group in self.groups]
        self._pools = [
            {
                number: names
                for number, (table, names) in enumerate(zip(group.tables, features, strict=True))
                if table in pooling.tables
                and all(schema.categorical[name].pooling in POOLS for name in names)
            }
            for group, features in zip(self.groups, self._features, strict=True)
        ]

    def ticket(self, batch: Batch) -> BatchLookup:
        """See `EmbeddingPlan.ticket`."""
        lookups, pooled = self.lookups(batch.ids), set[str]()
        requests, inverses, spans = lookups
        for number, request in enumerate(requests):
            bags, names = self._bags(batch, lookups, number)
            if not bags:
                continue
            pooled.update(names)
            requests[number] = new = replace(request, bags=bags)
            places = _places(new, self._features[number], names, inverses[number], spans, batch.size)
            inverses[number] = np.concatenate(list(places.values()))
            used = 0
            for name, positions in places.items():
                spans[name] = Span(number, used, used := used + len(positions))
        return self._ticket(batch, lookups, frozenset(pooled))

    def _bags(self, batch: Batch, lookups: Lookups, number: int) -> tuple[list[Bags], set[str]]:
        """Return the bags of the tables of a group for which pooling sends less, and their features."""
        request, bags, chosen = lookups.requests[number], list[Bags](), set[str]()
        for table, names in self._pools[number].items():
            of_table = [self._bag(batch, lookups, name, table) for name in names]
            ids = int(request.splits[table + 1] - request.splits[table])
            vectors = sum(bag.size for bag in of_table)
            if sends_less(ids, vectors, self._row_bytes[number], sum(map(_bytes, of_table))):
                bags += of_table
                chosen.update(names)
        return bags, chosen

    def _bag(self, batch: Batch, lookups: Lookups, name: str, table: int) -> Bags:
        span, jagged = lookups.spans[name], batch.ids[name]
        offsets = np.arange(batch.size + 1) if jagged.offsets is None else jagged.offsets
        inverse = lookups.inverses[span.group][span.start : span.stop]
        first = np.int32(lookups.requests[span.group].splits[table])
        pooling = self.schema.categorical[name].pooling
        return Bags(table, inverse - first, offsets, jagged.weights, pooling)  # type: ignore[arg-type]


def _bytes(bag: Bags) -> float:
    return bag_bytes(len(bag.inverse), len(bag.offsets), 0 if bag.weights is None else len(bag.weights))


def _places(
    request: LookupRequest,
    features: Sequence[Sequence[str]],
    pooled: Collection[str],
    inverse: npt.NDArray[np.int32],
    spans: Mapping[str, Span],
    size: int,
) -> dict[str, npt.NDArray[np.int32]]:
    """Return, by feature, the positions of its rows or vectors in the reply to a request with bags."""
    counts = np.diff(request.splits) * request.pooled
    shift = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    vector = len(request.ids) - int(shift[-1])
    positions = {}
    for table, names in enumerate(features):
        for name in names:
            if name in pooled:
                positions[name] = np.arange(vector, vector := vector + size, dtype=np.int32)
            else:
                positions[name] = inverse[spans[name].start : spans[name].stop] - shift[table]
    return positions


def bag_bytes(ids: float, offsets: float, weights: float = 0) -> float:
    """Return the bytes that describe the bags: 4 per id of a batch and per weight, 8 per offset."""
    return 4 * ids + 8 * offsets + 4 * weights


def sends_less(rows: float, vectors: float, row_bytes: float, beside: float) -> bool:
    """Return whether pooled vectors take fewer bytes than rows.

    Args:
        rows: number of unique ids of a batch.
        vectors: number of samples, summed over the features.
        row_bytes: bytes of a row or vector and of its gradient.
        beside: bytes that describe the bags, see `bag_bytes`.
    """
    return row_bytes * (rows - vectors) > beside
