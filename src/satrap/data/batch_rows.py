"""Slicing, concatenating and reordering of batch rows; `EpochRows`, a stream of rows that tracks its
position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch, Jagged
from satrap.data.source import Cursor
from satrap.runtime.numba_cache import compiled

Indices = npt.NDArray[np.int64]
_DENSE = ("numeric", "labels", "label_mask", "weights", "groups", "times")


@compiled(nogil=True)
def _take_values(values: Any, offsets: Any, indices: Any, out: Any) -> None:
    position = 0
    for i in indices:
        for k in range(offsets[i], offsets[i + 1]):
            out[position] = values[k]
            position += 1


def take_jagged(jagged: Jagged, indices: Indices) -> Jagged:
    """Return the samples at `indices`, in that order."""
    if jagged.offsets is None:
        return Jagged(jagged.values[indices])
    offsets = np.append(0, np.cumsum(jagged.offsets[indices + 1] - jagged.offsets[indices]))
    out = np.empty(offsets[-1], jagged.values.dtype)
    _take_values(jagged.values, jagged.offsets, indices, out)
    weights = None if jagged.weights is None else np.empty(offsets[-1], np.float32)
    if weights is not None:
        _take_values(jagged.weights, jagged.offsets, indices, weights)
    return Jagged(out, offsets, weights)


def slice_jagged(jagged: Jagged, start: int, stop: int) -> Jagged:
    """Return samples start..stop; values and weights are views."""
    if jagged.offsets is None:
        return Jagged(jagged.values[start:stop])
    window = jagged.offsets[start : stop + 1]
    weights = None if jagged.weights is None else jagged.weights[window[0] : window[-1]]
    return Jagged(jagged.values[window[0] : window[-1]], window - window[0], weights)


def concat_jagged(parts: Sequence[Jagged]) -> Jagged:
    """Return the concatenated samples of all parts; offsets and weights exist in all parts or in none."""
    values = np.concatenate([part.values for part in parts])
    if parts[0].offsets is None:
        return Jagged(values)
    counts = [np.diff(part.offsets) for part in parts if part.offsets is not None]
    weight_parts = [part.weights for part in parts if part.weights is not None]
    weights = np.concatenate(weight_parts) if weight_parts else None
    return Jagged(values, np.append(0, np.cumsum(np.concatenate(counts))), weights)


def _rebuilt(
    size: int, parts: Sequence[Batch], jagged: Callable[..., Jagged], dense: Callable[..., Any]
) -> Batch:
    first = parts[0]
    arrays = {
        name: None if getattr(first, name) is None else dense([getattr(part, name) for part in parts])
        for name in _DENSE
    }
    ids = {name: jagged([part.ids[name] for part in parts]) for name in first.ids}
    events = {name: jagged([part.events[name] for part in parts]) for name in first.events}
    return Batch(size, ids, **arrays, events=events)


def slice_rows(batch: Batch, start: int, stop: int) -> Batch:
    """Return rows start..stop as views, or the batch itself if they are all of its rows."""
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
    """Return the concatenated rows of all parts (at least one, of the same schema)."""
    if len(parts) == 1:
        return parts[0]
    return _rebuilt(sum(part.size for part in parts), parts, concat_jagged, np.concatenate)


@dataclass(frozen=True, slots=True)
class Mark:
    """A position between two rows of an epoch: `skip` rows after the piece at `cursor` (None: the first).

    Shuffle buffer number `buffer` (from 0) starts there, and `batch` of its batches have been yielded.
    """

    cursor: Cursor | None = None
    skip: int = 0
    buffer: int = 0
    batch: int = 0


class EpochRows:
    """The pieces (rows, cursor) of an epoch as one stream of rows, from `start` in the first piece."""

    def __init__(self, pieces: Iterator[tuple[Batch, Cursor]], start: Mark) -> None:
        self._pieces, self._skip = pieces, start.skip
        self._held: list[tuple[Batch, Cursor, int]] = []
        self._last = Mark(start.cursor, start.skip)

    @property
    def mark(self) -> Mark:
        """Position of the next row."""
        return Mark(*self._held[0][1:]) if self._held else self._last

    def fill(self, count: int) -> None:
        """Read ahead until at least `count` rows are buffered, or the epoch ends."""
        held = sum(batch.size - done for batch, _, done in self._held)
        while held < count and (piece := next(self._pieces, None)) is not None:
            batch, cursor = piece
            done = min(self._skip, batch.size)
            self._skip -= done
            if done < batch.size:
                self._held.append((batch, cursor, done))
                held += batch.size - done

    def take(self, count: int) -> Batch | None:
        """Return the next `count` rows, fewer at the end of the epoch, or None after the last row."""
        parts = self.take_parts(count)
        return concat_rows(parts) if parts else None

    def take_parts(self, count: int) -> list[Batch]:
        """Return the next rows in parts, which are views; none after the last row."""
        self.fill(count)
        parts: list[Batch] = []
        while self._held and count:
            batch, cursor, done = self._held[0]
            stop = min(done + count, batch.size)
            parts.append(slice_rows(batch, done, stop))
            count -= stop - done
            self._last = Mark(cursor, stop)
            if stop == batch.size:
                self._held.pop(0)
            else:
                self._held[0] = (batch, cursor, stop)
        return parts
