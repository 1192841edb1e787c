"""Prefetches rows of the tier in a thread before they are looked up."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from satrap.errors import StoreError
from satrap.store.arrays import Ids, Offsets, check_splits, plain
from satrap.store.group import GroupStore

MOST = 16
"""Most waiting requests; later requests are skipped, since their rows would arrive too late."""
MOST_IDS = 1 << 22
"""Most ids in all waiting requests together."""
PIECE = 1 << 14
"""Ids searched at a time: a lookup waits for at most one search of this size."""


class TierPrefetcher:
    """Prefetches rows that will be looked up soon: `Shard.ahead`. Changes none; only rows on a device move.

    ```python
    shard.ahead.prefetch(0, ids, splits)     # returns at once
    ...
    shard.lookup_group(0, ids, splits)       # does not wait for the disk
    ```
    """

    def __init__(self, groups: Sequence[GroupStore], lock: threading.Condition) -> None:
        self._groups, self._lock = groups, lock
        self.useful = any(len(group.backend.parts) > 1 for group in groups)
        """Whether there is a tier: without one, `prefetch` does nothing."""
        self._thread = ThreadPoolExecutor(1, "satrap-tier") if self.useful else None
        self._waiting, self._ids, self._count = 0, 0, threading.Lock()

    def prefetch(self, group: int, ids: Ids, splits: Offsets) -> None:
        """Read rows that are in the tier in the background, unless too many requests or ids are waiting.

        Args:
            group: index of the group.
            ids: uint64[n].
            splits: int64[tables + 1], as in `Shard.lookup_group`.

        Raises:
            StoreError: wrong dtype or shape, or unknown group.
        """
        thread, groups = self._thread, self._groups
        if thread is None:
            return
        if not 0 <= group < len(groups):
            raise StoreError(f"group {group} does not exist (number of groups: {len(groups)})")
        g, ids = groups[group], plain(ids, np.uint64, 1, "ids")
        splits = check_splits(splits, len(g.tables), len(ids))
        if self._enter(len(ids)):
            with contextlib.suppress(RuntimeError):  # another thread has just closed the store
                job = thread.submit(self._work, g, ids, splits)
                job.add_done_callback(lambda _: self._leave(len(ids)))

    def _enter(self, ids: int) -> bool:
        with self._count:
            if self._waiting == MOST or self._ids + ids > MOST_IDS:
                return False
            self._waiting, self._ids = self._waiting + 1, self._ids + ids
            return True

    def _leave(self, ids: int) -> None:
        with self._count:
            self._waiting, self._ids = self._waiting - 1, self._ids - ids

    def _work(self, group: GroupStore, ids: Ids, splits: Offsets) -> None:
        for first in range(0, len(ids), PIECE):
            part = ids[first : first + PIECE]
            with self._lock:
                if group.batches is not None:  # rows move, which cuts that are being read must copy
                    group.wait_for_readers(0, len(part), self._lock)
                read = group.backend.expect(part, np.clip(splits - first, 0, len(part)))
            if read is not None:
                read()  # may block on the system, so the lock is not held

    def settle(self) -> None:
        """Wait until all requests given to `prefetch` have been issued to the system."""
        if self._thread is not None:
            self._thread.submit(lambda: None).result()

    def close(self) -> None:
        """Finish the current prefetch and end the thread; later requests are ignored."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread, self._groups = None, ()
