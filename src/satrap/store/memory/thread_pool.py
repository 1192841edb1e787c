"""Runs one request on several threads, each with a range of its ids."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from satrap.errors import ConfigError

SMALLEST = 8192
"""Fewest ids worth a separate thread: handing over and waiting costs about 60 microseconds."""
DEFAULT = 4
"""Most threads by default: memory, not the processor, limits the store."""


class ThreadPool:
    """Threads that share a request, including the calling thread. Default: its cores, at most 4.

    Raises:
        ConfigError: fewer than one.
    """

    def __init__(self, threads: int | None) -> None:
        if threads is not None and threads < 1:
            raise ConfigError(f"threads must be >= 1, got {threads}")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads = threads or min(DEFAULT, cores)
        self._pool = ThreadPoolExecutor(self.threads - 1, "satrap-store") if self.threads > 1 else None

    def ranges(self, count: int) -> list[tuple[int, int]]:
        """Return ranges (first, end) that cover 0..count, one per thread with enough work."""
        parts = max(1, min(self.threads, count // SMALLEST))
        return list(pairwise(count * part // parts for part in range(parts + 1)))

    def run(self, ranges: list[tuple[int, int]], work: Callable[[int, int], object]) -> None:
        """Call `work(first, end)` for all ranges concurrently, and wait for them."""
        waits = [self._pool.submit(work, *part) for part in ranges[1:]] if self._pool else []
        try:
            work(*ranges[0])
        finally:
            for wait in waits:
                wait.result()

    def close(self) -> None:
        """End the threads."""
        if self._pool:
            self._pool.shutdown()
