"""Copies of some rows of the shards, with optimizer state, updated here as they are at the shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from satrap.exchange.lookup import Array, LookupRequest
from satrap.schema import Table
from satrap.store import Shard
from satrap.store.arrays import Offsets

KEPT_BYTES = 256 << 20
"""Bytes of rows above which rows without a waiting lookup are dropped."""


class RowMirror:
    """Rows of waiting lookups, and of earlier ones. Used by one thread.

    Args:
        tables: tables of the shards.
        seed: seed of the shards' stores; it decides how 16-bit weights are rounded.
    """

    def __init__(self, tables: Sequence[Table], seed: int) -> None:
        self._tables, self._seed = tables, seed
        self._shard, self._most = Shard(tables, seed=seed), KEPT_BYTES
        self._counted: set[int] = set()

    @property
    def full(self) -> bool:
        """Whether it is time to `keep` only rows that are needed."""
        return self._bytes > self._most

    @property
    def _bytes(self) -> int:
        return sum(group.bytes for group in self._shard.groups)

    def width(self, request: LookupRequest) -> int:
        """Return the number of elements of a row: weights and state."""
        group = self._shard.groups[request.group]
        return group.dim + group.plan.width

    def updates(self, request: LookupRequest) -> int:
        """Return the number of updates of a table group here."""
        return self._shard.groups[request.group].updates

    def missing(self, request: LookupRequest) -> LookupRequest:
        """Return the part of a request whose rows are not here."""
        return _part(request, self._absent(request))

    def _absent(self, request: LookupRequest) -> Offsets:
        group = self._shard.groups[request.group]
        return group.directory.find(request.ids, request.splits, use=False)[1]

    def add(self, request: LookupRequest, rows: Array, behind: int) -> None:
        """Add rows, float32[n, dim + width], except rows that are here already: these are newer.

        `behind`: how many more updates their table group had seen at the shards than here, at the time of the
        request. The rounding of 16-bit weights depends on it.
        """
        group = self._shard.groups[request.group]
        if group.index not in self._counted:
            self._counted.add(group.index)
            group.updates += behind
        absent = self._absent(request)
        new, fresh = _part(request, absent), rows[absent]
        self._shard.load_group(new.group, new.ids, new.splits, *np.split(fresh, [group.dim], axis=1))

    def rows(self, request: LookupRequest) -> Array:
        """Return the weights of a request, float32[n, dim]; all its rows are here."""
        rows, mask = self._shard.peek_group(request.group, request.ids, request.splits)
        assert mask.all()
        return rows

    def update(self, request: LookupRequest, gradients: Array, lr_scale: float) -> None:
        """Take the same step as the shards."""
        self._shard.update_group(
            request.group, request.ids, request.splits, gradients, lr_scale=lr_scale, checked=True
        )

    def keep(self, waiting: Iterable[LookupRequest]) -> None:
        """Drop all rows except the rows of these requests."""
        before, self._shard = self._shard, Shard(self._tables, seed=self._seed)
        for group, old in zip(self._shard.groups, before.groups, strict=True):
            group.updates = old.updates
        for request in waiting:
            absent = self.missing(request)
            slots, _ = before.groups[request.group].directory.find(absent.ids, absent.splits, use=False)
            here = _part(absent, np.flatnonzero(slots >= 0))
            rows = before.fetch_group(here.group, here.ids, here.splits)
            self._shard.load_group(here.group, here.ids, here.splits, *rows)
        before.close()
        self._most = max(KEPT_BYTES, 2 * self._bytes)

    def clear(self) -> None:
        """Drop all rows."""
        self._shard.clear()
        self._counted.clear()

    def close(self) -> None:
        """Free the memory."""
        self._shard.close()


def _part(request: LookupRequest, at: Offsets) -> LookupRequest:
    splits = np.searchsorted(at, request.splits).astype(np.int64)
    return LookupRequest(request.group, request.ids[at], splits)
