"""Batches of equal size whose numbers of events are also about equal."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def balanced(order: Indices, lengths: Indices, size: int) -> Indices:
    """Return the rows in an order in which all batches of `size` rows have about the same sum of lengths.

    Rows are dealt in rounds, longest first. In each round every batch gets one row, and the batch with the
    smallest sum gets the longest. All batches therefore mix short and long rows, and their sums differ by at
    most the difference of lengths within one round. Rows keep their order inside a batch, and the order of
    batches is as random as `order`. Rows beyond the last whole batch stay at the end.

    Args:
        order: int64[n], the rows in random order.
        lengths: int64[rows], >= 0, by row.
        size: rows of a batch.
    """
    count = len(order) // size
    whole = order[: count * size]
    row_lengths = lengths[whole]
    sums = np.argsort(whole[:count]) / max(count, 1)  # below 1: breaks ties at random
    batches = np.empty(len(whole), np.int64)
    for dealt in np.argsort(-row_lengths, kind="stable").reshape(size, count):
        smallest = np.argsort(sums)
        batches[dealt] = smallest
        sums[smallest] += row_lengths[dealt]
    return np.append(whole[np.argsort(batches, kind="stable")], order[count * size :])
