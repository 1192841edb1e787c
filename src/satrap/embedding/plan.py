"""Finds the unique ids of a batch: concatenates features by table group and removes duplicates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch, Jagged, one_id_each
from satrap.errors import ConfigError, did_you_mean
from satrap.exchange import LookupRequest, TableGroup
from satrap.optim import Optimizer
from satrap.schema import Schema, Table
from satrap.store import StoreConfig, TableSettings, distinct


def tables_of(
    schema: Schema,
    optimizer: Optimizer,
    dims: Mapping[str, int] | None = None,
    store: StoreConfig = StoreConfig(),
) -> list[Table]:
    """Return the tables that a schema needs, in order of first use.

    Args:
        schema: its categorical features name the tables.
        optimizer: optimizer of their rows.
        dims: feature -> width, if a model needs other widths than the schema's.
        store: initial scale and number format of the rows, and settings of single tables.

    Raises:
        ConfigError: features that share a table need different widths, or `store.tables` names an unknown
            table.
    """
    tables: dict[str, Table] = {}
    for name, feature in schema.categorical.items():
        dim = (dims or {}).get(name, feature.dim)
        settings = store.tables.get(schema.table_of(name), TableSettings())
        table = Table(
            schema.table_of(name),
            dim=dim,
            optimizer=None if settings.frozen else settings.optimizer or optimizer,
            initial_scale=store.initial_scale if settings.initial_scale is None else settings.initial_scale,
            dtype=settings.dtype or store.dtype,
            frozen=settings.frozen,
            memory=settings.memory,
            admission=settings.admission,
            eviction=settings.eviction,
        )
        if tables.setdefault(table.name, table).dim != dim:
            raise ConfigError(
                f"feature {name!r} needs rows of width {dim} in table {table.name!r}, whose rows have width "
                f"{tables[table.name].dim}",
                fix="give the model equal embedding_dims for features that share a table",
            )
    for name in store.tables.keys() - tables.keys():
        raise ConfigError(
            f"settings are given for table {name!r}, which does not exist",
            fix=f"{did_you_mean(name, tables)}tables: {', '.join(tables) or 'none'}",
        )
    return list(tables.values())


class Span(NamedTuple):
    """The range of one feature's ids: `inverse[start:stop]` of its group."""

    group: int
    start: int
    stop: int


Places = tuple[Mapping[str, Span], npt.NDArray[np.int64]]
"""Feature -> its span, and the splits of a request."""


class Lookups(NamedTuple):
    """The lookups of some features: one request per table group; inverses and spans as in a `BatchLookup`."""

    requests: list[LookupRequest]
    inverses: list[npt.NDArray[np.int32]]
    spans: dict[str, Span]


@dataclass(frozen=True, slots=True)
class BatchLookup:
    """A batch with the lookup it needs.

    Args:
        batch: the samples.
        requests: one per table group that occurs in the batch.
        inverses: per request, int32[ids of the group]: position of each id in `request.ids`.
        spans: feature -> its part of the inverse; `Span.group` is the index of the request.
        plain: per request, whether every sample has exactly one id of each feature, without a weight.
        pooled: features whose rows arrive pooled; for these, `inverses` has one position per sample.
        candidates: the lookup of `batch.candidates`, which is part of the same requests; None without them.
    """

    batch: Batch
    requests: Sequence[LookupRequest]
    inverses: Sequence[npt.NDArray[np.int32]]
    spans: Mapping[str, Span]
    plain: Sequence[bool] = ()
    pooled: frozenset[str] = frozenset()
    candidates: BatchLookup | None = None

    @property
    def distinct_ratio(self) -> float:
        """Unique ids / ids, over all groups."""
        total = sum(len(self.batch.ids[name].values) for name in self.spans)
        return sum(len(request.ids) for request in self.requests) / max(total, 1)


NO_BATCH = BatchLookup(Batch(0, {}), (), (), {})
"""The lookup of a worker that has no batch in a step of all workers: no samples, and no requests."""


class EmbeddingPlan:
    """Maps the features of a schema to the table groups of an exchange.

    Args:
        schema: the features.
        groups: the exchange's table groups, in order.

    Attributes:
        pooled: the groups that have pooled features: (index, these features in schema order).
        jagged: features that are not pooled.
        of_batches: whether requests hold all ids of a batch, see `BatchRequest`.
        replayable: whether a response is all that the update of a lookup needs.
    """

    of_batches = False
    replayable = True

    def __init__(self, schema: Schema, groups: Sequence[TableGroup]) -> None:
        self.schema = schema
        self.groups = tuple(groups)
        users: dict[str, list[str]] = {}
        for feature in schema.categorical:
            users.setdefault(schema.table_of(feature), []).append(feature)
        self._features = [[users.get(table, []) for table in group.tables] for group in groups]
        self.jagged = [name for name, feature in schema.categorical.items() if feature.pooling == "none"]
        by_group = (set(self.features_of(group)).difference(self.jagged) for group in range(len(groups)))
        in_order = (tuple(name for name in schema.categorical if name in names) for names in by_group)
        self.pooled = [(group, names) for group, names in enumerate(in_order) if names]
        self._known: list[tuple[tuple[int, ...], Places] | None] = [None] * len(groups)

    def features_of(self, group: int) -> tuple[str, ...]:
        """Return the features of a table group in the order of their ids in a request."""
        return tuple(name for of_table in self._features[group] for name in of_table)

    def distinct(self, ticket: BatchLookup) -> Sequence[LookupRequest]:
        """Return the requests for the unique ids of a ticket, one per table group."""
        return ticket.requests

    def ticket(self, batch: Batch) -> BatchLookup:
        """Remove duplicate ids of a batch with every categorical feature of the schema, by table group."""
        if batch.candidates is not None:
            return self._with_candidates(batch, batch.candidates)
        return self._ticket(batch, self.lookups(batch.ids))

    def _with_candidates(self, batch: Batch, candidates: Batch) -> BatchLookup:
        """Look up the ids of samples and candidates in the same requests."""
        ids = dict(batch.ids)
        for name, drawn in candidates.ids.items():
            ids[name] = one_id_each(np.concatenate((batch.ids[name].values, drawn.values)))
        requests, inverses, spans = self.lookups(ids)
        ends = {name: span.start + len(batch.ids[name].values) for name, span in spans.items()}
        of_samples = {name: span._replace(stop=ends[name]) for name, span in spans.items()}
        others = {name: spans[name]._replace(start=ends[name]) for name in spans if name in candidates.ids}
        plain = [False] * len(self.groups)
        drawn_lookup = BatchLookup(candidates, requests, inverses, others, plain)
        return BatchLookup(batch, requests, inverses, of_samples, plain, candidates=drawn_lookup)

    def _ticket(self, batch: Batch, lookups: Lookups, pooled: frozenset[str] = frozenset()) -> BatchLookup:
        plain = [
            all(name in pooled or batch.ids[name].single for of_table in features for name in of_table)
            for features in self._features
        ]
        return BatchLookup(batch, *lookups, plain, pooled)

    def lookups(self, ids: Mapping[str, Jagged]) -> Lookups:
        """Remove duplicate ids of features, which may have different numbers of samples."""
        result = Lookups([], [], {})
        for number, group in enumerate(self.groups):
            values, spans, splits = self.joined(number, ids)
            result.spans.update(spans)
            unique_ids, id_splits, inverse = distinct(values, splits)
            result.requests.append(LookupRequest(group.index, unique_ids, id_splits))
            result.inverses.append(inverse)
        return result

    def joined(
        self, number: int, ids: Mapping[str, Jagged]
    ) -> tuple[npt.NDArray[np.uint64], Mapping[str, Span], npt.NDArray[np.int64]]:
        """Return all ids of a table group, table after table, the span of each feature, and the splits."""
        features = self._features[number]
        arrays = [ids[feature].values for of_table in features for feature in of_table]
        counts = tuple(map(len, arrays))
        cached = self._known[number]
        if cached is None or cached[0] != counts:  # consecutive batches often have the same size
            cached = self._known[number] = counts, _places(number, features, counts)
        return _joined(arrays), *cached[1]


def _joined(arrays: Sequence[npt.NDArray[np.uint64]]) -> npt.NDArray[np.uint64]:
    """Return arrays one after the other; arrays that are next to each other in memory are not copied."""
    base = arrays[0].base if arrays else None
    if not isinstance(base, np.ndarray) or base.dtype != np.uint64 or not base.flags.c_contiguous:
        return np.concatenate(arrays)
    start = address = arrays[0].ctypes.data
    for array in arrays:
        if array.base is not base or array.ctypes.data != address or not array.flags.c_contiguous:
            return np.concatenate(arrays)
        address += array.nbytes
    first = (start - base.ctypes.data) // 8
    return base.reshape(-1)[first : first + (address - start) // 8]


def _places(group: int, features: Sequence[Sequence[str]], counts: Sequence[int]) -> Places:
    """Return the span of each feature of a group, and the splits between the ids of its tables.

    `features` are the names by table, `counts` the number of ids of each feature.
    """
    ends = [0, *accumulate(counts)]
    names = [name for of_table in features for name in of_table]
    spans = {name: Span(group, *pair) for name, pair in zip(names, pairwise(ends), strict=True)}
    firsts = [0, *accumulate(map(len, features))]
    return spans, np.array([ends[first] for first in firsts], np.int64)
