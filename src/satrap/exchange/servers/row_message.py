"""Payloads of ids and rows, in sections: one per table group.

A payload starts with an index part: one descriptor per table group, then per group its splits as
uint32[tables + 1]. Then come the arrays, raw: ids of each group, rows of each group.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.exchange.kernels import FORMATS, row_bytes
from satrap.rpc.wire.frames import MAX_PARTS, Buffer, FrameError, as_bytes

Ids = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]
Raw = npt.NDArray[np.uint8]

_COUNT = struct.Struct("<I")
_SECTION = struct.Struct("<HBBIIIf")
_NO_IDS, _IDS64, _IDS32 = 0, 8, 4
NO_ROWS = 255

MAX_SECTIONS = (MAX_PARTS - 1) // 2
"""Most table groups of a message; each takes a part for its ids and one for its rows."""
MAX_INDEX = 4 << 20
"""Longest index part, 4 MiB: a million tables."""


@dataclass(frozen=True, slots=True)
class Section:
    """One table group of a message.

    Args:
        group: index of the table group.
        splits: int64[tables + 1]; `ids[splits[t]:splits[t + 1]]` belong to the group's table t.
        ids: uint64[n], or None in responses.
        format: one of `FORMATS`, or NO_ROWS.
        dim: numbers per row.
        scale: factor on the rows before they were rounded.
        rows: uint8[n * row_bytes(format, dim)], raw; empty without rows.
    """

    group: int
    splits: Offsets
    ids: Ids | None
    format: int = NO_ROWS
    dim: int = 0
    scale: float = 1.0
    rows: Buffer = b""

    @property
    def count(self) -> int:
        """Number of ids."""
        return int(self.splits[-1])


def pack(sections: Sequence[Section]) -> list[Buffer]:
    """Return a payload; only ids that fit in uint32 are copied. Too many sections raise a `FrameError`."""
    if len(sections) > MAX_SECTIONS:
        raise FrameError(f"a message cannot have {len(sections)} sections: the limit is {MAX_SECTIONS}")
    descriptors, splits, arrays = [_COUNT.pack(len(sections))], [], []
    for s in sections:
        width = _NO_IDS
        if s.ids is not None:
            ids: npt.NDArray[Any] = s.ids
            width = _IDS64
            if int(np.bitwise_or.reduce(s.ids)) < 1 << 32:
                ids, width = s.ids.astype(np.uint32), _IDS32
            arrays.append(ids)
        if s.format != NO_ROWS:
            arrays.append(s.rows)
        descriptors.append(
            _SECTION.pack(s.group, width, s.format, len(s.splits) - 1, s.count, s.dim, s.scale)
        )
        splits.append(s.splits.astype("<u4").tobytes())
    return [b"".join(descriptors + splits), *arrays]


def unpack(parts: Sequence[Buffer], *, most: int = MAX_SECTIONS) -> list[Section]:
    """Return the sections of a payload, at most `most`; arrays are views of the parts.

    Raises:
        FrameError: there are more sections, or sizes or splits do not agree; nothing larger than the message
            is allocated.
    """
    if not parts:
        raise FrameError("a data message has no index part")
    if (size := memoryview(parts[0]).nbytes) > MAX_INDEX:
        raise FrameError(f"an index part has {size} bytes, over the limit of {MAX_INDEX}")
    index = bytes(memoryview(parts[0]))
    count = int.from_bytes(index[: _COUNT.size], "little")
    at = _COUNT.size + count * _SECTION.size
    if at > len(index):
        raise FrameError("the index part is too short")
    if count > most:
        raise FrameError(f"a data message has {count} sections, over the limit of {most}")
    descriptors = list(_SECTION.iter_unpack(index[_COUNT.size : at]))
    lengths = [4 * (tables + 1) for _, _, _, tables, _, _, _ in descriptors]
    if at + sum(lengths) != len(index):
        raise FrameError("the index part has the wrong size")
    starts = accumulate(lengths, initial=at)
    arrays = iter(parts[1:])
    sections = [_section(d, index, start, arrays) for d, start in zip(descriptors, starts, strict=False)]
    if next(arrays, None) is not None:
        raise FrameError("a data message has parts that its index does not name")
    return sections


def _section(descriptor: tuple[Any, ...], index: bytes, start: int, arrays: Any) -> Section:
    group, width, kind, tables, count, dim, scale = descriptor
    splits = np.frombuffer(index, "<u4", tables + 1, start).astype(np.int64)
    if splits[0] != 0 or splits[-1] != count or (splits[1:] < splits[:-1]).any():
        raise FrameError("splits do not ascend from 0 to the number of ids")
    if (
        kind not in (*FORMATS, NO_ROWS)
        or width not in (_NO_IDS, _IDS32, _IDS64)
        or not 0 < scale < float("inf")
    ):
        raise FrameError("a section has an unknown format")
    ids = None
    if width != _NO_IDS:
        raw = _take(arrays, count * width)
        ids = raw.view(np.uint64) if width == _IDS64 else raw.view(np.uint32).astype(np.uint64)
    rows = _take(arrays, count * row_bytes(kind, dim)) if kind != NO_ROWS else np.empty(0, np.uint8)
    return Section(group, splits, ids, kind, dim, scale, rows)


def _take(arrays: Any, size: int) -> Raw:
    part = next(arrays, None)
    if part is None:
        raise FrameError("a data message lacks a part")
    data = as_bytes(part)
    if len(data) != size:
        raise FrameError(f"a part has {len(data)} bytes, but the index announces {size}")
    return data
