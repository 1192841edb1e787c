"""Random order as a pure function of numbers, equal on every machine and with every NumPy version."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satrap.data.hashing import hash_ids


def permutation(count: int, *seeds: int) -> npt.NDArray[np.int64]:
    """Return a permutation of 0..count-1 that depends only on `seeds`.

    Each index is hashed with the seeds (a bijection, so no two keys are equal) and the keys are sorted.

    Args:
        count: >= 0.
        seeds: whole numbers; the order of the seeds matters.
    """
    key = 0
    for seed in seeds:
        key = int(hash_ids(np.array([seed % 2**64], np.uint64), key)[0])
    return np.argsort(hash_ids(np.arange(count, dtype=np.int64), key)).astype(np.int64, copy=False)
