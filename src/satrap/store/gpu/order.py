"""The distinct keys of a request, in the order of their buckets, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from satrap.store.gpu.layout import Sorted
from satrap.store.hashes import index_salt

_BLOCK = 1024


def blocks(n: int, size: int) -> int:
    """Return how many programs cover n things, `size` in each; at least 1."""
    return max(1, -(-n // size))


class Distinct(NamedTuple):
    """The distinct (table, id) of a request of at most n positions; *run* r is the r-th of them.

    Runs are in the order of (key, table). The memory belongs to the `Order`, whose next request uses it
    again; beyond `runs`, and for positions beyond the request's count, it is undefined.

    Attributes:
        keys: int64[n], of each run, see `kernels/order.py`.
        tables: int16[n], of each run; undefined with one table.
        ids: int64[n], of each run: the 64 bits of the id.
        starts: int32[n + 1]; run r is at sorted positions starts[r]..starts[r + 1] - 1.
        order: int32[n], the position of each sorted position; ascending within a run.
        inverse: int32[n], the run of each position.
        runs: int32[1], how many there are.
    """

    keys: Tensor
    tables: Tensor
    ids: Tensor
    starts: Tensor
    order: Tensor
    inverse: Tensor
    runs: Tensor

    @property
    def capacity(self) -> int:
        """Most positions, n."""
        return len(self.keys)


class Order:
    """Finds the distinct keys of requests of at most `capacity` positions, in memory that is used again.

    Nothing is read by the host and no shape depends on a request, so a CUDA graph can capture a call.

    Args:
        tables: names, in the order of a request.
        capacity: most positions, 1..2^31 - 1.
        device: where ids and results are.
    """

    def __init__(self, tables: Sequence[str], capacity: int, device: torch.device | str) -> None:
        self._tables, self._search = len(tables), (len(tables) - 1).bit_length()
        salts = np.array([index_salt(name) for name in tables], np.uint64).view(np.int64)
        self._salts = torch.from_numpy(salts).to(device)
        owners = capacity if self._tables > 1 else 1

        def memory(dtype: torch.dtype, n: int = capacity) -> Tensor:
            return torch.zeros(n, dtype=dtype, device=device)

        self._hashed = Sorted(memory(torch.int64), memory(torch.int64), memory(torch.int16, owners))
        self._sorted = self._hashed._replace(keys=memory(torch.int64))
        self._sums = memory(torch.int32, blocks(capacity, _BLOCK))
        # No position is in a table beyond the last.
        self._splits = torch.full((2**self._search,), 2**62, dtype=torch.int64, device=device)
        self._distinct = Distinct(
            keys=memory(torch.int64),
            tables=memory(torch.int16, owners),
            ids=memory(torch.int64),
            starts=memory(torch.int32, capacity + 1),
            order=memory(torch.int32),
            inverse=memory(torch.int32),
            runs=memory(torch.int32, 1),
        )

    def distinct(self, ids: Tensor, splits: Tensor, count: Tensor) -> Distinct:
        """Return the distinct keys of the first `count` positions.

        Args:
            ids: int64[capacity], the 64 bits of each id.
            splits: int64[tables + 1]; positions splits[t]..splits[t + 1] - 1 belong to table t.
            count: int32[1], the number of positions: the last split.
        """
        from satrap.store.gpu.kernels import order as kernels

        n, ordered = len(self._hashed.keys), self._sorted
        grid, fixed = (blocks(n, _BLOCK),), {"SEARCH": self._search, "BLOCK": _BLOCK}
        self._splits[: self._tables].copy_(splits[:-1])
        kernels.hash_ids[grid](ids, self._splits, self._salts, count, self._hashed, n, **fixed)
        torch.sort(self._hashed.keys, stable=True, out=(ordered.keys, ordered.positions))
        kernels.count_runs[grid](ordered, count, self._sums, **fixed)
        kernels.write_runs[grid](ordered, self._salts, count, self._sums, self._distinct, **fixed)
        return self._distinct
