"""Batch operations around a store: unique ids, pooling of rows, and their gradients.

All functions take and return NumPy arrays (a CPU tensor's `.numpy()` shares memory), run without the GIL, and
sum in a fixed order, so equal inputs give bit-identical results.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from satrap.errors import StoreError
from satrap.runtime.arguments import checked
from satrap.store.arrays import (
    Floats,
    Ids,
    Inverse,
    Offsets,
    address,
    check_out,
    check_rows,
    check_splits,
    describe,
    plain,
)
from satrap.store.kernels import batch
from satrap.store.memory.buffers import floats

Mode = Literal["sum", "mean", "max", "sqrtn"]
_CODES = {"sum": batch.SUM, "mean": batch.MEAN, "sqrtn": batch.SQRTN}
_NO_WEIGHTS = np.empty(0, np.float32)


@checked()
def distinct(ids: Ids, splits: Offsets) -> tuple[Ids, Offsets, Inverse]:
    """Return the unique ids of each segment, in order of first appearance.

    Args:
        ids: uint64[n].
        splits: int64[T + 1] ascending from 0 to n; segment t is `ids[splits[t]:splits[t + 1]]`.

    Returns:
        unique: uint64[u]; its splits: int64[T + 1]; inverse: int32[n] with `unique[inverse] == ids`.

    Raises:
        StoreError: wrong dtype or shape.
    """
    ids = plain(ids, np.uint64, 1, "ids")
    splits = check_splits(splits, None, len(ids))
    longest = int((splits[1:] - splits[:-1]).max(initial=0))
    table = np.empty(max(16, 1 << (2 * longest - 1).bit_length() if longest else 16), np.int32)
    out, inverse = np.empty(len(ids), np.uint64), np.empty(len(ids), np.int32)
    out_splits = np.empty(len(splits), np.int64)
    count = batch.distinct(ids, splits, table, address(table), out, out_splits, inverse)
    return out[:count], out_splits, inverse


@checked()
def segment_sum(gradients: Floats, inverse: Inverse, u: int) -> Floats:
    """Return float32[u, dim]: row j is the sum, in order of i, of `gradients[i]` with `inverse[i] == j`.

    Args:
        gradients: float32[n, dim].
        inverse: int32[n], values 0..u-1.
        u: number of rows of the result.

    Raises:
        StoreError: wrong dtype, shape or value.
    """
    gradients = plain(gradients, np.float32, 2, "gradients")
    inverse = _inverse(inverse, u, len(gradients))
    out = _into(None, u, gradients.shape[1])
    dim = gradients.shape[1]
    batch.segment_sum(dim)(address(gradients), inverse, np.uint64(dim), address(out))
    return out


@checked()
def pool(
    rows: Floats,
    inverse: Inverse,
    offsets: Offsets | None,
    *,
    mode: Mode = "sum",
    weights: Floats | None = None,
    out: Floats | None = None,
) -> tuple[Floats, Inverse | None]:
    """Return one vector per bag of rows: bag b is `rows[inverse[offsets[b]:offsets[b + 1]]]`.

    Args:
        rows: float32[u, dim].
        inverse: int32[n], values 0..u-1.
        offsets: int64[bags + 1] ascending from 0 to n; None: one row per bag.
        mode: "sum"; "mean" (weighted sum / sum of weights); "sqrtn" (weighted sum / square root of the sum
            of squared weights); "max" (largest weighted value per column; the first on ties). An empty bag
            gives 0; a divisor of 0 is replaced by 1.
        weights: float32[n], one per id; None: all 1.
        out: float32[bags, dim] to write to; rows may have any stride, such as `block[:, f, :]`.

    Returns:
        (out, None), or for "max" (out, int32[bags, dim]: the position in `inverse` of each value, -1 for an
        empty bag), which `pool_backward` needs.

    Raises:
        StoreError: wrong dtype, shape, value or mode.
    """
    rows = plain(rows, np.float32, 2, "rows")
    inverse, offsets, weights = _bags(inverse, offsets, weights, len(rows))
    out = check_out(out, len(offsets) - 1, rows.shape[1])
    if mode == "max":
        chosen = np.empty(out.shape, np.int32)
        batch.pool_max(
            address(rows), inverse, offsets, weights, np.uint64(rows.shape[1]), *strided(out), chosen
        )
        return out, chosen
    code, dim = _CODES[mode], np.uint64(rows.shape[1])
    batch.pool(address(rows), inverse, offsets, weights, code, dim, *strided(out))
    return out, None


@checked()
def pool_backward(
    gradients: Floats,
    inverse: Inverse,
    offsets: Offsets | None,
    u: int,
    *,
    mode: Mode = "sum",
    weights: Floats | None = None,
    argmax: Inverse | None = None,
    into: Floats | None = None,
) -> Floats:
    """Return float32[u, dim]: the gradient of `pool`'s rows, given the gradient of its output.

    Args:
        gradients: float32[bags, dim]; rows may have any stride.
        inverse, offsets, mode, weights: as given to `pool`.
        u: number of rows.
        argmax: int32[bags, dim] that `pool` returned, for "max".
        into: float32[u, dim], C-contiguous, to add to; default a new array of zeros.

    Raises:
        StoreError: wrong dtype, shape, value or mode.
    """
    inverse, offsets, weights = _bags(inverse, offsets, weights, u)
    if gradients.dtype != np.float32 or gradients.ndim != 2 or len(gradients) != len(offsets) - 1:
        raise StoreError(f"gradients must be float32[{len(offsets) - 1}, dim], got {describe(gradients)}")
    if gradients.strides[1] != 4:
        gradients = np.ascontiguousarray(gradients)
    out = _into(into, u, gradients.shape[1])
    if mode == "max":
        if argmax is None or argmax.shape != gradients.shape:
            raise StoreError("pool_backward with mode max needs the argmax that pool returned")
        argmax = plain(argmax, np.int32, 2, "argmax")
        batch.pool_max_backward(*strided(gradients), inverse, weights, argmax, address(out))
        return out
    code, dim = _CODES[mode], np.uint64(gradients.shape[1])
    batch.pool_backward(*strided(gradients), inverse, offsets, weights, code, dim, address(out))
    return out


@checked()
def gather_features(rows: Floats, inverse: Inverse, features: int, out: Floats | None = None) -> Floats:
    """Return float32[batch, features, dim] with `[b, f] = rows[inverse[f * batch + b]]`: one id per sample.

    Args:
        rows: float32[u, dim].
        inverse: int32[features * batch], feature after feature, values 0..u-1.
        features: number of features, >= 1.
        out: float32[batch, features, dim] to write to, such as `block[:, first : first + features]`.

    Raises:
        StoreError: wrong dtype, shape or value.
    """
    rows = plain(rows, np.float32, 2, "rows")
    inverse, out = block_of(inverse, len(rows), features, rows.shape[1], out)
    batch.gather_features(address(rows), inverse, features, np.uint64(rows.shape[1]), *strided(out))
    return out


def block_of(inverse: Inverse, u: int, features: int, dim: int, out: Floats | None) -> tuple[Inverse, Floats]:
    """Return `inverse`, checked, and `out` or a new array of float32[batch, features, dim]."""
    inverse = _inverse(inverse, u, len(inverse))
    if features < 1 or len(inverse) % features:
        raise StoreError(f"{len(inverse)} ids cannot be divided into {features} features of equal size")
    shape = (len(inverse) // features, features, dim)
    if out is None:
        return inverse, floats(*shape)
    if out.shape != shape or out.dtype != np.float32 or not _blocks(out):
        raise StoreError(f"out must be float32{list(shape)} of contiguous blocks, got {describe(out)}")
    return inverse, out


@checked()
def gather_features_backward(
    gradients: Floats, inverse: Inverse, u: int, into: Floats | None = None
) -> Floats:
    """Return float32[u, dim]: the gradient of `gather_features`' rows, given the gradient of its output.

    Gradients are summed feature by feature, and within a feature sample by sample.

    Args:
        gradients: float32[batch, features, dim]; samples may have any stride.
        inverse: as given to `gather_features`.
        u: number of rows.
        into: float32[u, dim], C-contiguous, to add to; default a new array. Without `into`, summing is
            fastest if rows are numbered by first appearance, as `distinct` does.

    Raises:
        StoreError: wrong dtype, shape or value.
    """
    if into is None:
        return sum_features(gradients, inverse, u)[0]
    gradients, inverse = _of_features(gradients, inverse, u)
    _, features, dim = gradients.shape
    out = _into(into, u, dim)
    batch.gather_features_backward(*strided(gradients), inverse, features, np.uint64(dim), address(out))
    return out


@checked()
def sum_features(gradients: Floats, inverse: Inverse, u: int) -> tuple[Floats, bool]:
    """Return the result of `gather_features_backward`, and whether all of it is finite.

    Checking during the summation is free; afterwards it would read the result again.
    """
    gradients, inverse = _of_features(gradients, inverse, u)
    _, features, dim = gradients.shape
    out = floats(u, dim)
    seen, finite = batch.first_gradients(*strided(gradients), inverse, features, np.uint64(dim), address(out))
    if seen == u:
        return out, finite
    out[:] = 0
    where = address(out)
    return out, batch.gather_features_backward(*strided(gradients), inverse, features, np.uint64(dim), where)


def _of_features(gradients: Floats, inverse: Inverse, u: int) -> tuple[Floats, Inverse]:
    if gradients.ndim != 3 or gradients.dtype != np.float32 or not _blocks(gradients):
        gradients = plain(gradients, np.float32, 3, "gradients")
    size, features, _ = gradients.shape
    return gradients, _inverse(inverse, u, size * features)


def _blocks(array: Floats) -> bool:
    """Return True if every sample's [features, dim] is contiguous."""
    return len(array) == 0 or bool(array[0].flags.c_contiguous)


def strided(array: Floats) -> tuple[np.uint64, np.uint64]:
    """Return (address, bytes from row to row); an array of one row may have any stride."""
    return address(array), np.uint64(array.strides[0] if len(array) > 1 else 0)


def _inverse(inverse: Inverse, u: int, count: int) -> Inverse:
    inverse = plain(inverse, np.int32, 1, "inverse")
    if len(inverse) != count:
        raise StoreError(f"inverse must have {count} entries, got {len(inverse)}")
    if not batch.inside(inverse, u):
        raise StoreError(f"values of inverse must be in 0..{u - 1}, since u is {u}")
    return inverse


def _bags(
    inverse: Inverse, offsets: Offsets | None, weights: Floats | None, u: int
) -> tuple[Inverse, Offsets, Floats]:
    inverse = _inverse(inverse, u, len(inverse))
    if offsets is None:
        offsets = np.arange(len(inverse) + 1, dtype=np.int64)
    offsets = check_splits(offsets, None, len(inverse))
    if weights is None:
        return inverse, offsets, _NO_WEIGHTS
    weights = plain(weights, np.float32, 1, "weights")
    if len(weights) != len(inverse):
        raise StoreError(f"{len(inverse)} ids but {len(weights)} weights")
    return inverse, offsets, weights


def _into(into: Floats | None, u: int, dim: int) -> Floats:
    if into is None:
        out = floats(u, dim)
        out[:] = 0
        return out
    if check_rows(into, u, dim, "into") is not into:
        raise StoreError("into must be C-contiguous and writable")
    return into
