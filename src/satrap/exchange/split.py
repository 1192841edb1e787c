"""Splits requests among the shards, and unites requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.exchange import kernels
from satrap.exchange.lookup import Bags, LookupRequest
from satrap.exchange.protocol import TableGroup
from satrap.exchange.shard_map import Owners, ShardMap
from satrap.store import bucket_of, distinct
from satrap.store.arrays import Ids, Offsets, check_splits, plain
from satrap.store.hashes import index_salt

Positions = npt.NDArray[np.int32]

EVERYWHERE = int(kernels.EVERYWHERE)
"""Marks a bucket that all shards hold."""


@dataclass(frozen=True, slots=True)
class ShardPart:
    """The part of a request for one holder of rows: a shard, or a rank.

    Args:
        ids: uint64[k], by table, in the order of the request.
        splits: int64[tables + 1].
        rows: int32, positions of the holder's rows in the response: first the rows of ids, then pooled
            vectors; None: the holder sends the whole response.
        gradients: int32, positions of the gradients that the holder gets; None: all.
        bags: features of tables that this holder alone has, which it pools.
    """

    ids: Ids
    splits: Offsets
    rows: Positions | None
    gradients: Positions | None
    bags: Sequence[Bags] = ()


class Splitter:
    """Splits requests by bucket.

    Args:
        groups: the table groups.
        map: map of buckets to shards.
        owners: by table, the shard of each bucket, uint16[4096], or `EVERYWHERE`; default: from the map.

    Attributes:
        map: of the arguments.
    """

    def __init__(
        self, groups: Sequence[TableGroup], map: ShardMap, owners: Mapping[str, Owners] | None = None
    ) -> None:
        self.map, self._shards, self._even, self._of_table = map, map.shards, map.owners, owners or {}
        self._owners = [np.stack([self._owners_of(table) for table in group.tables]) for group in groups]
        self._everywhere = [(owners == EVERYWHERE).all(axis=1) for owners in self._owners]
        self._salts = [np.array([index_salt(t) for t in g.tables], np.uint64) for g in groups]

    def _owners_of(self, table: str) -> Owners:
        return self._of_table.get(table, self._even)

    def checked(self, request: LookupRequest) -> LookupRequest:
        """Return a request with contiguous ids; raise a `StoreError` for wrong dtypes or splits."""
        if not 0 <= request.group < len(self._salts):
            raise StoreError(f"there is no group {request.group}: there are {len(self._salts)}")
        ids = plain(request.ids, np.uint64, 1, "ids")
        tables = len(self._salts[request.group])
        return LookupRequest(request.group, ids, check_splits(request.splits, tables, len(ids)))

    def split(self, request: LookupRequest) -> list[ShardPart]:
        """Return one part per shard; raise a `StoreError` for wrong dtypes or splits."""
        request = self.checked(request)
        ids, splits, salts = request.ids, request.splits, self._salts[request.group]
        if self._shards == 1:
            return [ShardPart(ids, splits, None, None)]
        n, copied = len(ids), self._everywhere[request.group]
        k = n + (self._shards - 1) * int(np.diff(splits)[copied].sum())
        bounds = np.zeros((self._shards, len(salts) + 1), np.int64)
        grouped, positions = np.empty(k, np.uint64), np.empty(k, np.int32)
        owners, owner = self._owners[request.group], np.empty(n, np.uint16)
        kernels.split(ids, splits, salts, owners, owner, bounds, grouped, positions)
        slices = [slice(b[0], b[-1]) for b in bounds]
        pairs = [(positions[s], grouped[s]) for s in slices]
        return [ShardPart(of, b - b[0], at, at) for (at, of), b in zip(pairs, bounds, strict=True)]

    def shards_of(self, table: str, ids: Ids) -> Owners:
        """Return the shard of each id of a table, uint16[n]."""
        return self._owners_of(table)[bucket_of(table, ids)]


def union(parts: Sequence[tuple[Ids, Offsets]]) -> tuple[Ids, Offsets, list[Positions]]:
    """Unite the ids of several requests in one table group.

    Args:
        parts: ids and splits of each request.

    Returns:
        The unique ids, table after table in the order of the requests; their splits; for each request, the
        positions of its ids among them.
    """
    if len(parts) == 1:
        return *parts[0], [np.arange(len(parts[0][0]), dtype=np.int32)]
    tables = range(len(parts[0][1]) - 1)
    cuts = [ids[splits[t] : splits[t + 1]] for t in tables for ids, splits in parts]
    total = np.sum([splits for _, splits in parts], axis=0).astype(np.int64)
    unique, unique_splits, inverse = distinct(np.concatenate(cuts), total)
    pieces = np.split(inverse, np.cumsum([len(cut) for cut in cuts])[:-1])
    return unique, unique_splits, [np.concatenate(pieces[i :: len(parts)]) for i in range(len(parts))]
