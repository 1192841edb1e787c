"""Chunks of rows and other arrays as message parts: a text that names them, then the raw arrays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.rpc.wire.frames import Buffer, FrameError, as_bytes
from satrap.rpc.wire.text import MAX_ANSWER, pack_text, shortened, unpack_text
from satrap.store import RowChunk

_COLUMNS = tuple(f.name for f in dataclasses.fields(RowChunk) if f.name != "table")
_PLAIN = ("|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8")
_DTYPES = ("<u8", "<f4", "<u4", "<i4", "<i8", "<u2", "<f2")


def pack_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> list[Buffer]:
    """Return the parts for named arrays."""
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    about = {name: [a.dtype.str, list(a.shape)] for name, a in plain.items()}
    return [pack_text({"arrays": about}), *(a.reshape(-1).view(np.uint8) for a in plain.values())]


def unpack_arrays(parts: Sequence[Buffer]) -> dict[str, npt.NDArray[Any]]:
    """Return copies of the packed arrays; raise a `FrameError` if the parts do not fit."""
    # the text may name hundreds of thousands of arrays
    about = unpack_text(parts[0], most=MAX_ANSWER).get("arrays") if parts else None
    if not isinstance(about, dict) or len(about) != len(parts) - 1:
        raise FrameError("a message has arrays without names")
    named = zip(about.items(), parts[1:], strict=True)
    return {name: _array(name, layout, part) for (name, layout), part in named}


def _array(name: str, layout: Any, part: Buffer) -> npt.NDArray[Any]:
    match layout:
        case [str(dtype), list(shape)] if dtype in _PLAIN and all(type(n) is int and n >= 0 for n in shape):
            data = as_bytes(part)
            if len(data) == math.prod(shape) * np.dtype(dtype).itemsize:
                return np.array(data.view(dtype)).reshape(shape)
    raise FrameError(f"array {name!r} does not have the number of bytes of its dtype and shape")


def pack_chunk(chunk: RowChunk) -> list[Buffer]:
    """Return the parts for a chunk of rows."""
    arrays = {name: np.ascontiguousarray(getattr(chunk, name)) for name in _COLUMNS}
    columns = {name: [a.dtype.str, a.shape[1] if a.ndim == 2 else -1] for name, a in arrays.items()}
    raw = [array.reshape(-1).view(np.uint8) for array in arrays.values()]
    return [pack_text({"table": chunk.table, "rows": len(chunk.ids), "columns": columns}), *raw]


def unpack_chunk(parts: Sequence[Buffer]) -> RowChunk:
    """Return the packed chunk as views of the parts; raise a `FrameError` if these do not fit."""
    if len(parts) != len(_COLUMNS) + 1:
        raise FrameError(f"a chunk has {len(_COLUMNS) + 1} parts, got {len(parts)}")
    about = unpack_text(parts[0])
    table, rows, columns = about.get("table"), about.get("rows"), about.get("columns")
    if not isinstance(table, str) or type(rows) is not int or rows < 0 or not isinstance(columns, dict):
        raise FrameError("a chunk lacks its table, rows or columns")
    if memoryview(parts[1]).nbytes != rows * 8:
        raise FrameError(f"a chunk has {memoryview(parts[1]).nbytes} bytes of ids for {shortened(rows)} rows")
    arrays = {
        name: _column(name, columns.get(name), rows, part)
        for name, part in zip(_COLUMNS, parts[1:], strict=True)
    }
    return RowChunk(table=table, **arrays)


def _column(name: str, layout: Any, rows: int, part: Buffer) -> Any:
    match layout:
        case [str(dtype), int(width)] if dtype in _DTYPES and type(width) is int and -1 <= width <= 1 << 20:
            data = as_bytes(part)
            if len(data) != rows * np.dtype(dtype).itemsize * abs(width):
                raise FrameError(f"column {name!r} of a chunk has {len(data)} bytes for {rows} rows")
            flat = data.view(dtype)
            return flat if width < 0 else flat.reshape(rows, width)
    raise FrameError(f"a chunk has an unknown column {name!r}")
