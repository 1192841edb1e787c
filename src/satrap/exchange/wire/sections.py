"""The format of ids, rows and gradients in messages: sections, one per table group.

A payload starts with an index part, little-endian. Then come the arrays of each section, raw.

```
index    u32 number of sections; a descriptor of each; the splits of each; the bags of each
section  u16 table group, u8 bytes of an id (0: no ids), u8 number format (255: no rows), u32 tables,
         u32 ids, u32 numbers per row, f32 scale, u32 bags
splits   u32[tables + 1]
bag      u32 table, u8 pooling mode, u8 whether it has weights, 2 bytes 0, u32 samples, u32 ids
ids      u32[ids] or u64[ids]
bags     of each: i64[samples + 1] offsets, i32[ids] positions, f32[ids] weights if it has any
rows     the rows of the ids that are not pooled, then the pooled vectors of each bag
```
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.exchange.kernels import FORMATS, row_bytes
from satrap.exchange.lookup import Bags
from satrap.rpc.wire.frames import MAX_PARTS, Buffer, FrameError, as_bytes
from satrap.store.arrays import Bytes, Found, Ids, Offsets

_COUNT = struct.Struct("<I")
_SECTION = struct.Struct("<HBBIIIfI")
_BAG = struct.Struct("<IBBxxII")
_MODES = ("sum", "mean", "sqrtn")
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
        rows: uint8[row_count * row_bytes(format, dim)], raw; empty without rows.
        bags: features whose rows the holder of their table pools.
    """

    group: int
    splits: Offsets
    ids: Ids | None
    format: int = NO_ROWS
    dim: int = 0
    scale: float = 1.0
    rows: Buffer = b""
    bags: Sequence[Bags] = ()

    @property
    def count(self) -> int:
        """Number of ids."""
        return int(self.splits[-1])

    @property
    def row_count(self) -> int:
        """Number of rows and pooled vectors."""
        if not self.bags:
            return self.count
        return int(np.count_nonzero(self.single)) + sum(bag.size for bag in self.bags)

    @property
    def single(self) -> Found:
        """bool[n]: the ids whose rows are not pooled."""
        tables = np.ones(len(self.splits) - 1, np.bool_)
        tables[[bag.table for bag in self.bags]] = False
        return np.repeat(tables, np.diff(self.splits))


def pack(sections: Sequence[Section]) -> list[Buffer]:
    """Return a payload; only ids that fit in uint32 are copied. Too many sections raise a `FrameError`."""
    if len(sections) > MAX_SECTIONS:
        raise FrameError(f"a message cannot have {len(sections)} sections: the limit is {MAX_SECTIONS}")
    index, splits, bags, arrays = [_COUNT.pack(len(sections))], list[bytes](), list[bytes](), list[Buffer]()
    for s in sections:
        width = _NO_IDS
        if s.ids is not None:
            ids: npt.NDArray[Any] = s.ids
            width = _IDS64
            if int(np.bitwise_or.reduce(s.ids)) < 1 << 32:
                ids, width = s.ids.astype(np.uint32), _IDS32
            arrays.append(ids)
        for b in s.bags:
            mode, weighted = _MODES.index(b.mode), b.weights is not None
            bags.append(_BAG.pack(b.table, mode, weighted, b.size, len(b.inverse)))
            arrays += [b.offsets, b.inverse, *([b.weights] if weighted else [])]
        if s.format != NO_ROWS:
            arrays.append(s.rows)
        tables = len(s.splits) - 1
        index.append(_SECTION.pack(s.group, width, s.format, tables, s.count, s.dim, s.scale, len(s.bags)))
        splits.append(s.splits.astype("<u4").tobytes())
    return [b"".join(index + splits + bags), *arrays]


def unpack(parts: Sequence[Buffer], *, most: int = MAX_SECTIONS) -> list[Section]:
    """Return the sections of a payload, at most `most`; arrays are views of the parts.

    Raises:
        FrameError: there are more sections, or sizes, splits or bags do not agree; nothing larger than the
            message is allocated.
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
    starts = list(accumulate((4 * (tables + 1) for _, _, _, tables, *_ in descriptors), initial=at))
    if starts[-1] + _BAG.size * sum(bags for *_, bags in descriptors) != len(index):
        raise FrameError("the index part has the wrong size")
    bags, arrays = _BAG.iter_unpack(index[starts[-1] :]), iter(parts[1:])
    sections = [_section(d, index, at, bags, arrays) for d, at in zip(descriptors, starts, strict=False)]
    if next(arrays, None) is not None:
        raise FrameError("a data message has parts that its index does not name")
    return sections


def _section(
    descriptor: tuple[Any, ...], index: bytes, at: int, bags: Iterator[Any], arrays: Iterator[Buffer]
) -> Section:
    group, width, kind, tables, count, dim, scale, bag_count = descriptor
    splits = np.frombuffer(index, "<u4", tables + 1, at).astype(np.int64)
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
    of_bags = [_bag(next(bags), splits, arrays) for _ in range(bag_count)]
    rows: Buffer = b""
    if kind != NO_ROWS:
        count = Section(group, splits, None, bags=of_bags).row_count if of_bags else count
        rows = _take(arrays, count * row_bytes(kind, dim))
    return Section(group, splits, ids, kind, dim, scale, rows, of_bags)


def _bag(descriptor: tuple[Any, ...], splits: Offsets, arrays: Iterator[Buffer]) -> Bags:
    table, mode, weighted, samples, count = descriptor
    offsets = _take(arrays, 8 * (samples + 1)).view(np.int64)
    inverse = _take(arrays, 4 * count).view(np.int32)
    weights = _take(arrays, 4 * count).view(np.float32) if weighted else None
    if table >= len(splits) - 1 or mode >= len(_MODES):
        raise FrameError("a bag has an unknown table or pooling mode")
    if offsets[0] != 0 or offsets[-1] != count or (offsets[1:] < offsets[:-1]).any():
        raise FrameError("the offsets of a bag do not ascend from 0 to the number of its ids")
    if count and not 0 <= inverse.min() <= inverse.max() < splits[table + 1] - splits[table]:
        raise FrameError("a bag names an id that is not among the ids of its table")
    return Bags(table, inverse, offsets, weights, _MODES[mode])  # type: ignore[arg-type]


def _take(arrays: Iterator[Buffer], size: int) -> Bytes:
    part = next(arrays, None)
    if part is None:
        raise FrameError("a data message lacks a part")
    data = as_bytes(part)
    if len(data) != size:
        raise FrameError(f"a part has {len(data)} bytes, but the index announces {size}")
    return data
