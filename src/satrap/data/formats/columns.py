"""Conversions of Arrow columns to NumPy arrays, shared by hashing and transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from satrap.errors import DataError


def as_array(values: Any) -> pa.Array:
    """Return values as one pyarrow array, without a copy where memory allows; NaN in objects becomes null.

    UUIDs become text, views of text or bytes become text or bytes, and run-length encoded values are
    expanded. Raises `DataError` if the values have mixed types.
    """
    if isinstance(values, pa.ChunkedArray):
        return as_array(values.combine_chunks() if values.num_chunks != 1 else values.chunk(0))
    if isinstance(values, pa.Array):
        return _usual(values)
    if callable(getattr(values, "detach", None)):
        values = _of_tensor(values)
    if hasattr(values, "__arrow_c_stream__") and library(values) != "pandas":  # such as a Series of polars
        return as_array(pa.chunked_array(values))
    try:
        if isinstance(values, np.ndarray) and values.ndim == 2:
            flat = pa.array(np.ascontiguousarray(values).reshape(-1), from_pandas=True)
            return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        try:
            array = pa.array(values, from_pandas=True)
        except OverflowError:  # Python integers from 2**63 on
            array = pa.array(values, pa.uint64(), from_pandas=True)
    except OverflowError as error:
        raise DataError(
            "an integer has more than 64 bits, or the values mix negative integers with integers >= 2**63",
            why="a column holds 64-bit integers, signed or unsigned",
            fix="convert the column to text, for example with .astype(str)",
        ) from error
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"the values have no common type: {str(error).splitlines()[0]}",
            why="a column must hold numbers or text, not both",
            fix="convert the column to text, for example with .astype(str)",
        ) from error
    except TypeError as error:
        raise DataError(
            f"a value of type {type(values).__name__} is not a column of values",
            fix="give a list, an array or a Series",
        ) from error
    return as_array(array)


def library(values: Any) -> str:
    """Return the top-level package of an object's class, such as "polars"."""
    return type(values).__module__.split(".")[0].lstrip("_")


def _of_tensor(tensor: Any) -> npt.NDArray[Any]:
    """Return a tensor of PyTorch as an array; bfloat16, which NumPy lacks, as float32."""
    on_host = tensor.detach().cpu()
    array: npt.NDArray[Any] = (on_host.float() if "bfloat16" in str(tensor.dtype) else on_host).numpy()
    return array


def _usual(array: pa.Array) -> pa.Array:
    array = without_views(array)
    return _uuid_text(array.storage) if is_uuid(array.type) else array


def taken(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """Return some rows of a table; views and runs, which pyarrow's `take` rejects, become plain arrays."""
    names = table.column_names
    return pa.Table.from_arrays([without_views(column) for column in table.columns], names).take(rows)


def without_views(values: Any) -> Any:
    """Return an array or chunked array with views and runs, also inside lists, as plain values."""
    if pa.types.is_run_end_encoded(values.type):
        return without_views(pc.run_end_decode(values))
    kind = _shown(values.type)
    return values if kind == values.type else values.cast(kind)


def _shown(kind: pa.DataType) -> pa.DataType:
    """Return a type with every view type, also nested ones, replaced by its plain type."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_shown(field.type)) for field in kind])
    for is_list, make in _LISTS.items():
        if is_list(kind):
            return make(kind.value_field.with_type(_shown(kind.value_type)))
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _shown(kind.value_type), kind.ordered)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_shown(kind.value_type)), kind.list_size)
    return kind


_LISTS = {pa.types.is_list: pa.list_, pa.types.is_large_list: pa.large_list}


def is_uuid(kind: pa.DataType) -> bool:
    """Return whether values are UUIDs, which Arrow stores as 16 bytes."""
    return getattr(kind, "extension_name", "") == "arrow.uuid"


_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_PLACES = np.array([i for i in range(36) if i not in (8, 13, 18, 23)])


def _uuid_text(storage: pa.Array) -> pa.Array:
    """Return 16 bytes each as text such as 6ba7b810-9dad-11d1-80b4-00c04fd430c8."""
    data = b"".join(storage.fill_null(bytes(16)).to_numpy(zero_copy_only=False))
    numbers = np.frombuffer(data, np.uint8).reshape(-1, 16)
    text = np.full((len(numbers), 36), ord("-"), np.uint8)
    text[:, _PLACES] = _HEX[np.stack((numbers >> 4, numbers & 15), axis=2).reshape(-1, 32)]
    fixed = pa.Array.from_buffers(pa.binary(36), len(text), [None, pa.py_buffer(text)])
    return pc.if_else(storage.is_valid(), fixed.cast(pa.large_binary()).cast(pa.large_string()), None)


def concatenated(parts: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Return the parts of a column as one; parts of different kinds, such as numbers and text, become text.

    Raises `DataError` for types that cannot even be text, such as lists and numbers.
    """
    try:
        tables = [pa.table({"": part}) for part in parts]
        return pa.concat_tables(tables, promote_options="permissive").column(0)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # the types have no common type
        kinds = dict.fromkeys(str(part.type) for part in parts)
    try:
        texts = [part.cast(pa.string()) for part in parts]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"the parts of the column have types without a common type: {', '.join(kinds)}",
            why="a column must have values of one kind",
            fix="rewrite the files with the same types, or leave the column out",
        ) from error
    return pa.chunked_array([chunk for text in texts for chunk in text.chunks], pa.string())


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are text or bytes in Arrow's offsets layout."""
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
    """Return numbers as float64[n], NaN for null. Text is parsed as numbers, true and false as 1 and 0.

    Empty text and the texts in `missing` become NaN. Raises `pyarrow.ArrowInvalid` if a text is not a
    number, or the type cannot be a number.
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
        raise pa.ArrowInvalid("dates, times and ids are not numbers")
    values: npt.NDArray[np.float64] = pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values
