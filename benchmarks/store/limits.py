"""What the memory allows: copying and changing rows whose addresses are known, prefetched, nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit

from satrap.store.kernels.simd import broadcast, load_like, prefetch, prefetch_write, store

_OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False}
_FOUR, _LINE, _LANES, _ZERO = np.uint64(4), np.uint64(64), np.uint64(16), np.uint64(0)


def _gather(dim: int) -> Any:
    size, width = np.uint64(4 * dim), np.uint64(dim)

    @njit(**_OPTIONS)  # type: ignore[untyped-decorator]
    def gather(base, stride, slots, out, ahead):  # type: ignore[no-untyped-def]
        n = slots.shape[0]
        like = broadcast(np.float32(0))
        for i in range(n):
            if i + ahead < n:
                next_row = base + np.uint64(slots[i + ahead]) * stride
                for k in range(_ZERO, size, _LINE):
                    prefetch(next_row + k)
            row, target = base + np.uint64(slots[i]) * stride, out + np.uint64(i) * size
            for k in range(_ZERO, width, _LANES):
                store(target + k * _FOUR, load_like(like, row + k * _FOUR))

    return gather


def _rmw(width: int) -> Any:
    size, floats = np.uint64(4 * width), np.uint64(width)

    @njit(**_OPTIONS)  # type: ignore[untyped-decorator]
    def rmw(base, stride, slots, out, ahead):  # type: ignore[no-untyped-def]
        n = slots.shape[0]
        zero = broadcast(np.float32(0))
        for i in range(n):
            if i + ahead < n:
                next_row = base + np.uint64(slots[i + ahead]) * stride
                for k in range(_ZERO, size, _LINE):
                    prefetch_write(next_row + k)
            row = base + np.uint64(slots[i]) * stride
            for k in range(_ZERO, floats, _LANES):
                store(row + k * _FOUR, load_like(zero, row + k * _FOUR) + zero)

    return rmw


class Limit:
    """The fastest loop over known rows found on this machine: prefetch distance tuned on the spot.

    Args:
        kind: "gather" (copy `width` floats of each slot's row to a dense output) or "rmw" (read, add, write).
        width: floats per row, a multiple of 16.
        threads: how many threads share the slots.
    """

    def __init__(self, kind: str, width: int, threads: int = 1) -> None:
        self._kernel = _gather(width) if kind == "gather" else _rmw(width)
        self._bytes, self._threads, self._ahead = 4 * width, threads, 0
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __call__(self, rows: Any, slots: Any, out: Any) -> None:
        if not self._ahead:
            self._tune(rows, slots, out)
        self._run(rows, slots, out, self._ahead)

    def _run(self, rows: Any, slots: Any, out: Any, ahead: int) -> None:
        address = out.ctypes.data
        if self._pool is None:
            self._kernel(rows.base, rows.stride, slots, np.uint64(address), ahead)
            return
        cuts = np.linspace(0, len(slots), self._threads + 1).astype(int)
        waits = [
            self._pool.submit(
                self._kernel,
                rows.base,
                rows.stride,
                slots[a:b],
                np.uint64(address + a * self._bytes),
                ahead,
            )
            for a, b in pairwise(cuts)
        ]
        for wait in waits:
            wait.result()

    def _tune(self, rows: Any, slots: Any, out: Any) -> None:
        lines = max(1, self._bytes // 64)
        candidates = sorted({max(2, n // lines) for n in (24, 48, 64, 96, 128, 192)})
        best = float("inf")
        for ahead in candidates:
            self._run(rows, slots, out, ahead)
            seconds = min(_timed(lambda ahead=ahead: self._run(rows, slots, out, ahead)) for _ in range(7))
            if seconds < best:
                best, self._ahead = seconds, ahead


def _timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
