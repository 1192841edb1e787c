"""The memory's limit: copying and changing rows at known addresses, prefetched, without other work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit

from benchmarks.store.workload import Batch
from satrap.store import Shard, floats
from satrap.store.kernels.batch import ASIDE
from satrap.store.kernels.rows import all_finite
from satrap.store.kernels.simd import (
    broadcast,
    load_like,
    prefetch,
    prefetch_write,
    settle,
    store,
    store_aside,
)

_OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False}
_FOUR, _LINE, _LANES, _ZERO = np.uint64(4), np.uint64(64), np.uint64(16), np.uint64(0)


def _gather(dim: int, aside: bool) -> Any:
    size, width, full = np.uint64(4 * dim), np.uint64(dim), np.uint64(dim // 16 * 16)

    @njit(**_OPTIONS)  # type: ignore[untyped-decorator]
    def gather(base, stride, slots, out, ahead):  # type: ignore[no-untyped-def]
        n = slots.shape[0]
        none = np.float32(0)
        like = broadcast(none)
        for i in range(n):
            if i + ahead < n:
                next_row = base + np.uint64(slots[i + ahead]) * stride
                for k in range(_ZERO, size, _LINE):
                    prefetch(next_row + k)
            row, target = base + np.uint64(slots[i]) * stride, out + np.uint64(i) * size
            for k in range(_ZERO, full, _LANES):
                if aside:
                    store_aside(target + k * _FOUR, load_like(like, row + k * _FOUR))
                else:
                    store(target + k * _FOUR, load_like(like, row + k * _FOUR))
            for k in range(full, width):
                store(target + k * _FOUR, load_like(none, row + k * _FOUR))
        if aside:
            settle()

    return gather


def _rmw(width: int, scalar: bool) -> Any:
    size, floats = np.uint64(4 * width), np.uint64(width)

    @njit(**_OPTIONS)  # type: ignore[untyped-decorator]
    def rmw(base, stride, slots, scalars, ahead):  # type: ignore[no-untyped-def]
        n = slots.shape[0]
        none = np.float32(0)
        zero = broadcast(none)
        for i in range(n):
            if i + ahead < n:
                next_row = base + np.uint64(slots[i + ahead]) * stride
                for k in range(_ZERO, size, _LINE):
                    prefetch_write(next_row + k)
                if scalar:
                    prefetch_write(scalars + np.uint64(slots[i + ahead]) * _FOUR)
            row = base + np.uint64(slots[i]) * stride
            for k in range(_ZERO, floats, _LANES):
                store(row + k * _FOUR, load_like(zero, row + k * _FOUR) + zero)
            if scalar:
                place = scalars + np.uint64(slots[i]) * _FOUR
                store(place, load_like(none, place) + none)

    return rmw


class Limit:
    """The fastest loop over known rows on this machine: the prefetch distance is tuned at run time.

    Args:
        kind: "gather" (copy `width` floats of each slot's row to a dense output) or "rmw" (read, add to and
            write them, and the row's scalar if `rows` has any).
        rows: memory of the rows.
        width: floats per row, for "rmw" a multiple of 16.
        threads: how many threads share the slots.
        aside: for "gather" to an output too large for the caches: write past them. `width` is a multiple of
            16, the output lies at a multiple of 64.

    Attributes:
        seconds: per slot, once `tuned`.
    """

    def __init__(self, kind: str, rows: Any, width: int, threads: int = 1, *, aside: bool = False) -> None:
        self._rows, self._gathers = rows, kind == "gather"
        self._kernel = _gather(width, aside) if self._gathers else _rmw(width, rows.scalars > 0)
        self._bytes, self._threads, self._ahead = 4 * width, threads, 0
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self.seconds = 0.0

    def __call__(self, slots: Any, out: Any) -> None:
        """Process the rows of `slots`; `out` receives the copies of "gather"."""
        self._run(slots, out, self._ahead)

    def _run(self, slots: Any, out: Any, ahead: int) -> None:
        address, step = (out.ctypes.data, self._bytes) if self._gathers else (int(self._rows.scalars), 0)

        def part(first: int, end: int) -> None:
            start = np.uint64(address + first * step)
            self._kernel(self._rows.base, self._rows.stride, slots[first:end], start, ahead)

        if self._pool is None:
            part(0, len(slots))
            return
        cuts = np.linspace(0, len(slots), self._threads + 1).astype(int).tolist()
        for wait in [self._pool.submit(part, a, b) for a, b in pairwise(cuts)]:
            wait.result()

    def tuned(self, batches: Sequence[Any], out: Any) -> Limit:
        """Choose the prefetch distance that is fastest over several batches of slots; return the limit."""
        lines = max(1, self._bytes // 64)
        candidates = sorted({max(2, n // lines) for n in (24, 48, 64, 96, 128, 192)})
        times: dict[int, list[float]] = {ahead: [] for ahead in candidates}
        self._run(batches[0], out, 1)
        for i in range(5 * len(batches)):
            for position, ahead in enumerate(candidates):  # each finds a batch that is no longer in the cache
                slots = batches[(i + 3 * position) % len(batches)]
                start = time.perf_counter()
                self._run(slots, out, ahead)
                times[ahead].append((time.perf_counter() - start) / len(slots))
        medians = {ahead: statistics.median(seconds) for ahead, seconds in times.items()}
        self._ahead = min(candidates, key=lambda ahead: medians[ahead])
        self.seconds = medians[self._ahead]
        return self


class StepLimit:
    """The memory traffic of a step, with all addresses known: rows to the block, gradients, changed rows.

    One row per id is copied to its place in the block; the block's gradient is read once, at full speed; each
    unique row and its scalar are read, added to and written. Finding rows, deduplicating ids and summing
    their gradients are not included.

    Args:
        shard: with one group, whose optimizer is row-wise Adagrad.
        work: the batches.
        gradient: float32[batch, features, dim].
        threads: how many threads share the rows.
    """

    def __init__(self, shard: Shard, work: Sequence[Batch], gradient: Any, threads: int) -> None:
        group, slab = shard.groups[0], shard.groups[0].backend.slab
        dim, size = group.dim, gradient.nbytes
        self._distinct = [group.directory.find(b.unique, b.unique_splits, use=False)[0] for b in work]
        self._each = [slots[b.inverse] for slots, b in zip(self._distinct, work, strict=True)]
        self._gradient = gradient.reshape(-1).view(np.uint32)
        self._block = floats(gradient.size // dim, dim)
        aside = [False, True] if size > ASIDE and dim % 16 == 0 else [False]
        fills = [Limit("gather", slab.rows, dim, threads, aside=a) for a in aside]
        self._fill = min((f.tuned(self._each, self._block) for f in fills), key=lambda f: f.seconds)
        self._change = Limit("rmw", slab.rows, dim, threads).tuned(self._distinct, self._block)

    def __call__(self, i: int) -> None:
        """Move the data of batch i."""
        self._fill(self._each[i], self._block)
        all_finite(self._gradient)
        self._change(self._distinct[i], self._block)
