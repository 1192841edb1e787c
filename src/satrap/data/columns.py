"""Conversions of Arrow columns to NumPy arrays that hashing and transforms share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from satrap.errors import DataError


def as_array(values: Any) -> pa.Array:
    """Return values as one pyarrow array, without a copy where the memory allows; NaN of objects is null.

    Raises `DataError` if the types of the values are mixed.
    """
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if isinstance(values, pa.Array):
        return values
    try:
        if isinstance(values, np.ndarray) and values.ndim == 2:
            flat = pa.array(np.ascontiguousarray(values).reshape(-1), from_pandas=True)
            return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        try:
            array = pa.array(values, from_pandas=True)
        except OverflowError:  # Python integers from 2**63 on
            array = pa.array(values, pa.uint64(), from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise DataError(
            f"the values have no common type: {str(error).splitlines()[0]}",
            why="a column holds numbers or text, not both",
            fix="convert the column to text, for example with .astype(str)",
        ) from error
    except TypeError as error:
        raise DataError(
            f"a value of type {type(values).__name__} holds no values",
            fix="give a list, an array or a Series",
        ) from error
    return as_array(array) if isinstance(array, pa.ChunkedArray) else array


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values are text or bytes with Arrow's offsets layout."""
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def bytes_of(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """Return (all bytes, offsets[n + 1] into them) of a text array, without a copy."""
    _, offsets, data = array.buffers()
    kind = np.int64 if array.type in (pa.large_string(), pa.large_binary()) else np.int32
    if offsets is None or offsets.size == 0:
        return np.empty(0, np.uint8), np.zeros(len(array) + 1, kind)
    window = np.frombuffer(offsets, kind)[array.offset : array.offset + len(array) + 1]
    return (np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)), window


_TRUTH = pa.array(["true", "True", "TRUE", "false", "False", "FALSE"])
"""The first three are 1, the others 0."""


def to_floats(array: pa.Array, missing: pa.Array | None = None) -> npt.NDArray[np.float64]:
    """Return numbers as float64[n], NaN for null. Text is read as numbers, true and false as 1 and 0.

    Empty text and the texts in `missing` become NaN. Raises `pyarrow.ArrowInvalid` if a text is no number, or
    the type cannot be one.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if is_text(array.type):
        array = pc.utf8_trim_whitespace(array.cast(pa.string()))
        nothing = pc.equal(array, "")
        if missing is not None:
            nothing = pc.or_(nothing, pc.is_in(array, missing))
        array = pc.if_else(nothing, pa.scalar(None, pa.string()), array)
        truths = pc.index_in(array, _TRUTH)
        if truths.null_count < len(truths):
            array = pc.if_else(truths.is_valid(), pc.if_else(pc.less(truths, 3), "1", "0"), array)
    elif pa.types.is_temporal(array.type) or isinstance(array.type, pa.BaseExtensionType):
        raise pa.ArrowInvalid("dates, times and ids are no numbers")
    values: npt.NDArray[np.float64] = pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values
