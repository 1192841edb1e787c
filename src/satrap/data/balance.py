"""Batches of equally many rows that have about as many events, too."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def balanced(order: Indices, lengths: Indices, size: int) -> Indices:
    """Return the rows in an order in which each `size` of them have about the same sum of lengths.

    Rows are dealt in rounds, the longest first. In a round each batch gets one row, the batch with the
    smallest sum the longest. So all batches have short and long ones, and their sums differ by no more than
    lengths of one round do. Inside a batch, rows keep their order. Which batch comes first is as random as
    `order`. Rows beyond whole batches stay at the end.

    Args:
        order: int64[n], the rows in random order.
        lengths: int64[rows], >= 0, by row.
        size: rows of a batch.
    """
    count = len(order) // size
    whole = order[: count * size]
    own = lengths[whole]
    sums = np.argsort(whole[:count]) / max(count, 1)  # below 1: equal sums are told apart at random
    batches = np.empty(len(whole), np.int64)
    for dealt in np.argsort(-own, kind="stable").reshape(size, count):
        smallest = np.argsort(sums)
        batches[dealt] = smallest
        sums[smallest] += own[dealt]
    return np.append(whole[np.argsort(batches, kind="stable")], order[count * size :])
