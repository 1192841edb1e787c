"""Rows of several pieces in any order, each id copied once: to its place in a lookup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from satrap.batch import Batch, one_id_each
from satrap.data.batch_rows import Indices, concat_rows, take_rows
from satrap.runtime.numba_cache import compiled
from satrap.schema import Schema


def _read(context: Any, address: Any) -> Any:

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=8)

    return types.uint64(types.uint64), generate


_load: Any = intrinsic(_read)
"""_load(address): the uint64 at an address."""


@compiled(nogil=True)
def _gather(addresses: Any, parts: Any, rows: Any, out: Any) -> None:
    for feature in range(out.shape[0]):
        of_feature = addresses[feature]
        for i in range(out.shape[1]):
            out[feature, i] = _load(of_feature[parts[i]] + np.uint64(8) * rows[i])


class ShuffleBuffer:
    """Rows that are taken in any order.

    The ids of a batch are written feature after feature, with the features of a table group next to each
    other. So a lookup of the batch reads them in place, see `satrap.embedding.EmbeddingPlan`.

    Args:
        parts: consecutive rows; at least one part. Ids of features with one id per row are not copied.
        schema: the schema of the rows.

    Attributes:
        size: number of rows.
        others: the rows without the ids of these features.
    """

    def __init__(self, parts: Sequence[Batch], schema: Schema) -> None:
        first, dims = parts[0].ids, {n: f.dim for n, f in schema.categorical.items()}
        single = [name for name, jagged in first.items() if jagged.single]
        tables = list(dict.fromkeys(map(schema.table_of, first)))
        self._single = sorted(single, key=lambda name: (dims[name], tables.index(schema.table_of(name))))
        self._order = list(first)
        ids = [[np.ascontiguousarray(part.ids[name].values) for part in parts] for name in self._single]
        self._ids = ids  # the arrays behind the addresses
        self._addresses = np.array([[a.ctypes.data for a in arrays] for arrays in ids], np.uint64)
        self._starts = np.cumsum([0, *(part.size for part in parts[:-1])])
        self.size = sum(part.size for part in parts)
        jagged = [name for name in first if name not in set(single)]
        self.others = concat_rows([replace(part, ids={n: part.ids[n] for n in jagged}) for part in parts])

    def take(self, indices: Indices) -> Batch:
        """Return the rows at `indices`, in that order, as copies."""
        batch = take_rows(self.others, indices)
        if self._single:
            parts: npt.NDArray[np.int64] = np.searchsorted(self._starts, indices, "right") - 1
            block = np.empty((len(self._single), len(indices)), np.uint64)
            _gather(self._addresses, parts, (indices - self._starts[parts]).astype(np.uint64), block)
            ids = {**batch.ids, **{n: one_id_each(row) for n, row in zip(self._single, block, strict=True)}}
            batch.ids = {name: ids[name] for name in self._order}
        return batch
