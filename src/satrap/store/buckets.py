"""Sets of fixed buckets: ascending numbers, as runs of consecutive numbers or as a mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from satrap.store.hashes import BUCKETS

Mask = npt.NDArray[np.bool_]


def runs_of(buckets: Sequence[int]) -> list[range]:
    """Return the runs of consecutive numbers in an ascending sequence, in order."""
    if isinstance(buckets, range):
        return [buckets] if len(buckets) else []
    numbers = np.asarray(buckets, np.int64)
    if not len(numbers):
        return []
    ends = np.append(np.flatnonzero(np.diff(numbers) != 1), len(numbers) - 1)
    starts = np.insert(ends[:-1] + 1, 0, 0)
    pairs = zip(numbers[starts].tolist(), numbers[ends].tolist(), strict=True)
    return [range(first, last + 1) for first, last in pairs]


def mask_of(buckets: Sequence[int]) -> Mask:
    """Return bool[4096]: True for these buckets."""
    mask = np.zeros(BUCKETS, np.bool_)
    mask[np.asarray(buckets, np.int64)] = True
    return mask
