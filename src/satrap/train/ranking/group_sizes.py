"""Whether the groups of a data set have enough samples for ranking metrics."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch
from satrap.dense import Workers
from satrap.errors import DataError
from satrap.train.state.across_workers import told

Ids = npt.NDArray[np.uint64]


def check_group_sizes(batches: Iterable[Batch], most: int, workers: Workers) -> None:
    """Raise `DataError` if no group of the samples of all workers has `most` samples.

    Every group would be shorter than the list that a metric looks at, so recall would be 1 for any model.
    Reads only until a group is large enough; the groups take 8 bytes per sample until then.
    """
    held, enough = _large_enough(batches, most)
    workers.meet("groups counted")
    [count] = workers.data.count([float(enough)])
    if count:
        return
    every = [np.frombuffer(part, np.uint64) for part in workers.data.gather(held.tobytes())]
    largest = told(workers, _largest(np.concatenate([held[:0], *every])))
    if largest < most:
        raise DataError(
            f"ranking looks at the first {most} samples of a group, but the largest group has {largest}",
            why="the first places would hold all samples of every group, whatever the model",
            fix=f"set ranking at to smaller numbers than {largest}, or check the group column"
            if largest > 1
            else "set group to a column whose values several samples share",
        )


def _large_enough(batches: Iterable[Batch], most: int) -> tuple[Ids, bool]:
    """Return the groups read so far, one id per sample, and whether one has `most` samples."""
    parts, counted, total = list[Ids](), 0, 0
    for batch in batches:
        if batch.groups is None:
            raise DataError(
                "ranking needs groups, but a batch has none",
                fix="read the data with a schema that has a group",
            )
        parts.append(batch.groups)
        total += batch.size
        if total >= 2 * counted:  # so that the work grows with the samples, not with their square
            parts, counted = [np.concatenate(parts)], total
            if _largest(parts[0]) >= most:
                return parts[0], True
    held = np.concatenate([np.empty(0, np.uint64), *parts])
    return held, _largest(held) >= most


def _largest(groups: Ids) -> int:
    """Return the number of samples of the largest group."""
    return int(np.unique(groups, return_counts=True)[1].max(initial=0))
