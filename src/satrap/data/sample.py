"""A random sample of a stream's rows."""

from __future__ import annotations

import numpy as np

from satrap.batch import Batch
from satrap.data.batch_rows import concat_rows, take_rows


class Sample:
    """A uniform sample, without replacement, of up to `size` rows of the batches passed to `add`.

    Each row gets a random key, and the rows with the smallest keys stay. About 3 * `size` rows and two
    batches are in memory at most.

    Args:
        size: rows to keep, > 0.
        seed: of the random keys, default 0.
    """

    def __init__(self, size: int, *, seed: int = 0) -> None:
        self.size, self.seen = size, 0
        self._random = np.random.default_rng(seed)
        self._keys: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
        self._parts: list[Batch] = []
        self._limit = 1.0

    def add(self, batch: Batch) -> None:
        """Sample the rows of a batch; keeps copies."""
        self.seen += batch.size
        keys = self._random.random(batch.size)
        indices = np.flatnonzero(keys < self._limit)
        if len(indices):
            self._keys.append(keys[indices])
            self._parts.append(take_rows(batch, indices))
        if sum(map(len, self._keys)) > 2 * self.size:
            self._shrink()

    def rows(self) -> Batch | None:
        """Return the sample as one batch in the order of the stream; None if the stream had no rows."""
        if not self._parts:
            return None
        self._shrink()
        return self._parts[0]

    def _shrink(self) -> None:
        keys = np.concatenate(self._keys)
        chosen = np.sort(np.argsort(keys)[: self.size])
        self._keys, self._parts = [keys[chosen]], [take_rows(concat_rows(self._parts), chosen)]
        if len(keys) > self.size:
            self._limit = float(self._keys[0].max())
