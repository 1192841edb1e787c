"""Slicing, joining and reordering the rows of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch, Jagged
from satrap.machine_code import compiled

Indices = npt.NDArray[np.int64]
_DENSE = ("numeric", "labels", "label_mask", "weights", "groups")


@compiled(nogil=True)
def _take_jagged(values: Any, offsets: Any, indices: Any, ends: Any, out: Any) -> None:
    position = 0
    for i in range(len(indices)):
        for k in range(offsets[indices[i]], offsets[indices[i] + 1]):
            out[position] = values[k]
            position += 1
        ends[i + 1] = position


def take_jagged(jagged: Jagged, indices: Indices) -> Jagged:
    """Return the samples at `indices`, in that order."""
    if jagged.offsets is None:
        return Jagged(jagged.values[indices])
    counts = jagged.offsets[indices + 1] - jagged.offsets[indices]
    ends = np.zeros(len(indices) + 1, np.int64)
    out = np.empty(int(counts.sum()), np.uint64)
    _take_jagged(jagged.values, jagged.offsets, indices, ends, out)
    return Jagged(out, ends)


def slice_jagged(jagged: Jagged, start: int, stop: int) -> Jagged:
    """Return samples start..stop; values are a view."""
    if jagged.offsets is None:
        return Jagged(jagged.values[start:stop])
    window = jagged.offsets[start : stop + 1]
    return Jagged(jagged.values[window[0] : window[-1]], window - window[0])


def concat_jagged(parts: Sequence[Jagged]) -> Jagged:
    """Return the samples of all parts one after another; all parts have offsets, or none has."""
    values = np.concatenate([part.values for part in parts])
    if parts[0].offsets is None:
        return Jagged(values)
    counts = [np.diff(part.offsets) for part in parts if part.offsets is not None]
    offsets = np.zeros(sum(map(len, counts)) + 1, np.int64)
    np.cumsum(np.concatenate(counts), out=offsets[1:])
    return Jagged(values, offsets)


def _rebuilt(
    size: int, parts: Sequence[Batch], jagged: Callable[..., Jagged], dense: Callable[..., Any]
) -> Batch:
    first = parts[0]
    arrays = {
        name: None if getattr(first, name) is None else dense([getattr(part, name) for part in parts])
        for name in _DENSE
    }
    return Batch(size, {name: jagged([part.ids[name] for part in parts]) for name in first.ids}, **arrays)


def slice_rows(batch: Batch, start: int, stop: int) -> Batch:
    """Return rows start..stop as views; the batch itself if that is all of it."""
    if start == 0 and stop == batch.size:
        return batch
    return _rebuilt(
        stop - start,
        [batch],
        lambda js: slice_jagged(js[0], start, stop),
        lambda arrays: arrays[0][start:stop],
    )


def take_rows(batch: Batch, indices: Indices) -> Batch:
    """Return the rows at `indices`, in that order, as copies."""
    return _rebuilt(
        len(indices), [batch], lambda js: take_jagged(js[0], indices), lambda arrays: arrays[0][indices]
    )


def concat_rows(parts: Sequence[Batch]) -> Batch:
    """Return the rows of all parts (at least one, of the same schema) one after another."""
    if len(parts) == 1:
        return parts[0]
    return _rebuilt(sum(part.size for part in parts), parts, concat_jagged, np.concatenate)
