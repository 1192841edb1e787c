"""Requests of device rows, made with NumPy, and sums in the order of the device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Sorted:
    """What `satrap.store.gpu.slab.DistinctRuns` describes."""

    ids: torch.Tensor
    tables: torch.Tensor
    runs: torch.Tensor
    starts: torch.Tensor
    order: torch.Tensor
    inverse: torch.Tensor


def request(ids, splits=None, capacity=None):
    """Return the runs of uint64 ids; `ids[splits[t]:splits[t + 1]]` belong to table t."""
    n = len(ids)
    splits = np.array([0, n]) if splits is None else splits
    capacity = capacity or max(1, n)
    tables = np.repeat(np.arange(len(splits) - 1), np.diff(splits))
    order = np.lexsort((tables, ids))
    first = np.flatnonzero(
        np.diff(ids[order], prepend=~ids[order[:1]]).astype(bool) | (np.diff(tables[order], prepend=-1) != 0)
    )
    inverse = np.empty(n, np.int32)
    inverse[order] = np.repeat(np.arange(len(first)), np.diff(np.append(first, n)))

    def padded(values, dtype, size=capacity):
        out = np.full(size, np.iinfo(dtype).max, dtype)  # what no kernel may read
        out[: len(values)] = values
        return on_device(out)

    return Sorted(
        padded(ids[order][first].view(np.int64), np.int64),
        padded(tables[order][first], np.int16),
        on_device(np.array([len(first)], np.int32)),
        padded(np.append(first, n), np.int32, capacity + 1),
        padded(order, np.int32),
        padded(inverse, np.int32),
    )


def on_device(array):
    """Return a tensor of the array on the device of these tests."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE)


def sums(runs, gradients):
    """Return float32[runs, dim]: the sums of gradients by position, in the order of the device."""
    order, starts = runs.order.cpu().numpy(), runs.starts.cpu().numpy()
    out = []
    for first, end in pairwise(starts[: int(runs.runs) + 1]):
        if end - first <= 64:
            out.append(added(gradients[order[first:end]]))
            continue
        cuts = [first, *range(first // 64 * 64 + 64, end, 64), end]
        pieces = [added(gradients[order[a:b]]) for a, b in pairwise(cuts)]
        lanes = np.array([added(np.array(pieces[i::32]).reshape(-1, gradients.shape[1])) for i in range(32)])
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
        out.append(lanes[0])
    return np.array(out, np.float32)


def added(rows):
    """Return the sum of float32 rows, one after another."""
    total = np.zeros(rows.shape[1], np.float32)
    for row in rows:
        total = total + row
    return total
