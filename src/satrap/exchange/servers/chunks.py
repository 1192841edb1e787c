"""Chunks of rows and other arrays as message parts: a text that names them, then each array raw."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.exchange.servers.frames import Buffer, FrameError, as_bytes
from satrap.exchange.servers.payload import pack_text, unpack_text
from satrap.store import Chunk

_COLUMNS = tuple(f.name for f in dataclasses.fields(Chunk) if f.name != "table")
_PLAIN = ("|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8")
PAGE_BYTES = 64 << 20
"""Arrays larger than this go in several messages, each with about as much."""
_DTYPES = ("<u8", "<f4", "<u4", "<i4", "<i8", "<u2", "<f2")


def pack_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> list[Buffer]:
    """Return the parts that carry named arrays."""
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    about = {name: [a.dtype.str, list(a.shape)] for name, a in plain.items()}
    return [pack_text({"arrays": about}), *(a.reshape(-1).view(np.uint8) for a in plain.values())]


def unpack_arrays(parts: Sequence[Buffer]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that `pack_arrays` packed, as copies.

    Raises:
        FrameError: names, types or sizes do not fit.
    """
    about = unpack_text(parts[0]).get("arrays") if parts else None
    if not isinstance(about, dict) or len(about) != len(parts) - 1:
        raise FrameError("arrays without their names")
    named = zip(about.items(), parts[1:], strict=True)
    return {name: _array(name, layout, part) for (name, layout), part in named}


def _array(name: str, layout: Any, part: Buffer) -> npt.NDArray[Any]:
    match layout:
        case [str(dtype), list(shape)] if dtype in _PLAIN and all(type(n) is int and n >= 0 for n in shape):
            data = as_bytes(part)
            if len(data) == math.prod(shape) * np.dtype(dtype).itemsize:
                return np.array(data.view(dtype)).reshape(shape)
    raise FrameError(f"array {name!r} does not have the bytes it announces")


def pages_of(parts: Sequence[Buffer]) -> int:
    """Return in how many messages `pack_page` carries these parts."""
    return max(1, -(-sum(memoryview(part).nbytes for part in parts) // PAGE_BYTES))


def pack_page(parts: Sequence[Buffer], page: int) -> list[Buffer]:
    """Return the message that carries a page of parts which may be too large, or too many, for one."""
    views = [memoryview(part).cast("B") for part in parts]
    start, end, at, pieces = page * PAGE_BYTES, (page + 1) * PAGE_BYTES, 0, []
    for view in views:
        pieces.append(view[max(0, start - at) : max(0, end - at)])
        at += len(view)
    return [pack_text({"page": page, "sizes": [len(view) for view in views]}), b"".join(pieces)]


class Pages:
    """Puts together what `pack_page` took apart."""

    def __init__(self) -> None:
        self._next, self._data = 0, bytearray()

    def add(self, message: Sequence[Buffer]) -> list[Buffer] | None:
        """Take the next page, or page 0 of something new; return all parts if it was the last.

        Raises:
            FrameError: it is another page, or does not have the bytes it announces.
        """
        about = unpack_text(message[0]) if len(message) == 2 else {}
        page, sizes = about.get("page"), about.get("sizes")
        if page == 0:
            self._next, self._data = 0, bytearray()
        whole = isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)
        if type(page) is not int or page != self._next or not whole:
            raise FrameError("a page out of order")
        assert isinstance(sizes, list)
        self._data += as_bytes(message[1]).data
        self._next, total = page + 1, sum(sizes)
        if len(self._data) != min(total, PAGE_BYTES * self._next):
            raise FrameError("a page does not have the bytes it announces")
        if len(self._data) < total:
            return None
        view, ends = memoryview(self._data), itertools.accumulate(sizes, initial=0)
        self._next, self._data = 0, bytearray()
        return [view[a:b] for a, b in itertools.pairwise(ends)]


def pack_chunk(chunk: Chunk) -> list[Buffer]:
    """Return the parts that carry a chunk of rows."""
    arrays = {name: np.ascontiguousarray(getattr(chunk, name)) for name in _COLUMNS}
    columns = {
        name: [array.dtype.str, array.shape[1] if array.ndim == 2 else -1] for name, array in arrays.items()
    }
    raw = [array.reshape(-1).view(np.uint8) for array in arrays.values()]
    return [pack_text({"table": chunk.table, "rows": len(chunk.ids), "columns": columns}), *raw]


def unpack_chunk(parts: Sequence[Buffer]) -> Chunk:
    """Return the chunk that `pack_chunk` packed; its arrays are views of the parts.

    Raises:
        FrameError: names, types or sizes do not fit.
    """
    if len(parts) != len(_COLUMNS) + 1:
        raise FrameError(f"a chunk has {len(_COLUMNS) + 1} parts, got {len(parts)}")
    about = unpack_text(parts[0])
    table, rows, columns = about.get("table"), about.get("rows"), about.get("columns")
    if not isinstance(table, str) or not isinstance(rows, int) or not isinstance(columns, dict):
        raise FrameError("a chunk does not say its table, rows and columns")
    arrays = {
        name: _column(name, columns.get(name), rows, part)
        for name, part in zip(_COLUMNS, parts[1:], strict=True)
    }
    return Chunk(table=table, **arrays)


def _column(name: str, layout: Any, rows: int, part: Buffer) -> Any:
    match layout:
        case [str(dtype), int(width)] if dtype in _DTYPES and -1 <= width <= 1 << 20:
            data = as_bytes(part)
            if len(data) != rows * np.dtype(dtype).itemsize * abs(width):
                raise FrameError(f"column {name!r} of a chunk has {len(data)} bytes for {rows} rows")
            flat = data.view(dtype)
            return flat if width < 0 else flat.reshape(rows, width)
    raise FrameError(f"a chunk has an unknown column {name!r}")
