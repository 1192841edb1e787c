"""Arrays that enter or leave the store, and checks of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.store.memory.buffers import floats

Ids = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Offsets = npt.NDArray[np.int64]
Inverse = npt.NDArray[np.int32]
Found = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]


def plain(array: npt.NDArray[np.generic], dtype: type[np.generic], ndim: int, name: str) -> np.ndarray:
    """Return the array C-contiguous and writable (a copy if needed); raise if dtype or `ndim` differ."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != ndim:
        raise StoreError(f"{name} must be {np.dtype(dtype).name} with {ndim} axes, got {describe(array)}")
    if array.flags.carray:
        return array
    return np.array(array, dtype, order="C")


def describe(array: object) -> str:
    """Return dtype and shape of an array as text, or the type of anything else."""
    if isinstance(array, np.ndarray):
        return f"{array.dtype}{list(array.shape)}"
    return type(array).__name__


def address(array: npt.NDArray[np.generic]) -> np.uint64:
    """Return the address of the first element, as kernels expect it."""
    return np.uint64(array.ctypes.data)


def per_table(positions: Offsets, splits: Offsets) -> Offsets:
    """Return the number of these ascending positions in each table, int64[tables]."""
    return np.diff(np.searchsorted(positions, splits)).astype(np.int64)


def check_splits(splits: Offsets, segments: int | None, count: int) -> Offsets:
    """Return `splits` if it is int64[segments + 1] ascending from 0 to `count`; else raise `StoreError`."""
    splits = plain(splits, np.int64, 1, "splits")
    if len(splits) < 1 or (segments is not None and len(splits) != segments + 1):
        raise StoreError(f"splits must have one entry more than the group has tables, got {len(splits)}")
    if splits[0] != 0 or splits[-1] != count or (splits[1:] < splits[:-1]).any():
        raise StoreError(f"splits must ascend from 0 to the number of ids ({count})")
    return splits


def on_host(rows: Any) -> Floats:
    """Return an array, or a copy of a device's tensor in the memory of the host."""
    if isinstance(rows, np.ndarray):
        return rows
    copied: Floats = rows.detach().cpu().numpy()
    return copied


def check_rows(array: Floats, rows: int, dim: int, name: str) -> Floats:
    """Return float32[rows, dim] C-contiguous; raise `StoreError` if dtype or shape differ."""
    array = plain(array, np.float32, 2, name)
    if array.shape != (rows, dim):
        raise StoreError(f"{name} must be float32[{rows}, {dim}], got {describe(array)}")
    return array


def not_finite(update: str) -> StoreError:
    """Return the error for an update with non-finite gradients; `update` describes it in a few words."""
    return StoreError(
        "the gradients contain NaN or infinite values",
        where=f"update of {update}",
        why="such gradients would destroy the rows; the whole update was refused",
        fix="lower the learning rate or clip gradients",
    )


def check_out(out: Floats | None, rows: int, dim: int) -> Floats:
    """Return `out`, or a new array, as float32[rows, dim] with contiguous rows (any stride).

    Raises:
        StoreError: dtype, shape or strides do not fit.
    """
    if out is None:
        return floats(rows, dim)
    fits = isinstance(out, np.ndarray) and out.dtype == np.float32 and out.shape == (rows, dim)
    if not fits or not out.flags.writeable:
        raise StoreError(f"out must be a writable float32[{rows}, {dim}], got {describe(out)}")
    if rows and dim > 1 and out.strides[1] != 4:
        raise StoreError("out must have contiguous rows", fix="only the first axis may be strided")
    return out


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of a request's rows, from `Shard.lookup_slots`; pass them to `update_group`.

    Slots never become invalid: a row that has moved since is looked up again.

    Args:
        group: index of the group.
        numbers: int32[n], -1 without a row.
        epoch: number of times the store had been cleared by then.
        reassigned: number of slots that had been taken from a row by then.
        complete: True if all ids have a row.
    """

    group: int
    numbers: Inverse
    epoch: int
    reassigned: int
    complete: bool = False


class FeatureIds(NamedTuple):
    """The part of a request's ids that belongs to one feature, and how its rows are pooled.

    Attributes:
        start, stop: its ids are `ids[start:stop]` of the request.
        offsets: int64[size + 1], bounds of the samples among these ids; None: exactly one id each.
        weights: float32[stop - start]; None: all 1.
        mode: "sum", "mean", "sqrtn" or "max", see `satrap.store.pool`, or "none": rows are not pooled, and
            their weights are not used.
    """

    start: int
    stop: int
    offsets: npt.NDArray[np.int64] | None
    weights: npt.NDArray[np.float32] | None
    mode: Literal["sum", "mean", "sqrtn", "max", "none"]
