"""Rows, gradients and tensors as sections of a message, chunks of rows as named arrays, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from satrap.errors import ExchangeError
from satrap.exchange import kernels
from satrap.exchange.lookup import Array, LookupRequest
from satrap.exchange.protocol import TableGroup
from satrap.exchange.split import ShardPart
from satrap.exchange.telemetry import Rounding
from satrap.exchange.wire.formats import CODES, Positions, gather_gradients, scale_of, to_wire
from satrap.exchange.wire.sections import NO_ROWS, Section, pack, unpack
from satrap.rpc.wire.frames import Buffer, FrameError, as_bytes
from satrap.rpc.wire.text import pack_arrays, unpack_arrays, unpack_text
from satrap.store import RowChunk, floats
from satrap.store.arrays import Bytes, Floats, address, check_rows, not_finite

Parts = Sequence[Sequence[ShardPart]]
"""For each request, the part of each holder of rows."""
Shape = Sequence[int]


def sections_of(requests: Sequence[LookupRequest], parts: Parts, holder: int) -> list[Section]:
    """Return a holder's parts of some requests."""
    pairs = ((r.group, of_request[holder]) for r, of_request in zip(requests, parts, strict=True))
    return [Section(group, part.splits, part.ids, bags=part.bags) for group, part in pairs]


def row_section(
    group: int,
    rows: Floats,
    code: int,
    positions: Positions | None = None,
    rounding: Rounding | None = None,
) -> Section:
    """Return rows `positions` (None: all) of float32[n, dim] as a section without ids.

    `rounding` measures their rounding.
    """
    raw = to_wire(rows, code, positions)
    if rounding is not None:
        rounding.note(rows, raw, code, positions)
    count = len(rows if positions is None else positions)
    return Section(group, _splits(count), None, code, rows.shape[1], 1.0, raw)


def _splits(count: int) -> npt.NDArray[np.int64]:
    return np.array([0, count], np.int64)


def from_wire(section: Section, out: Floats, positions: Positions | None = None) -> Floats:
    """Write a section's rows to rows `positions` (None: all) of `out`, float32[n, dim]; return `out`.

    Rows with positions must have scale 1.
    """
    raw, dim = address(as_bytes(section.rows)), np.uint64(out.shape[1])
    if positions is not None:
        kernels.widen_rows(section.format, raw, dim, positions, address(out))
        return out
    kernels.widen(section.format, raw, address(out), np.uint64(len(out)), dim)
    if section.scale != 1.0:
        out *= np.float32(1.0 / section.scale)
    return out


class RowReplies:
    """Places the rows of all holders in one array per request.

    Args:
        requests: the requests.
        parts: for each request, the part of each holder.
        widths: numbers per row, for each request.
        name: name of a holder in errors, "shard" or "rank".

    Attributes:
        rows: float32[request.rows, width] for each request.
    """

    def __init__(
        self, requests: Sequence[LookupRequest], parts: Parts, widths: Sequence[int], name: str
    ) -> None:
        self._requests, self._parts, self._name = requests, parts, name
        self.rows = [floats(r.rows, width) for r, width in zip(requests, widths, strict=True)]

    def places(self, holder: int) -> list[Positions | None]:
        """Return, for each request, the positions of a holder's rows; None: all."""
        return [of_request[holder].rows for of_request in self._parts]

    def put(
        self, holder: int, sections: Sequence[Section], places: Sequence[Positions | None] | None = None
    ) -> None:
        """Place a holder's rows at `places`, by default at the rows of its parts.

        Raises:
            ExchangeError: the holder has sent other rows than requested.
        """
        by_group = {section.group: section for section in sections}
        places = self.places(holder) if places is None else places
        for request, rows, at in zip(self._requests, self.rows, places, strict=True):
            section = by_group.get(request.group)
            shape = len(rows if at is None else at), rows.shape[1]
            if section is None or (section.row_count, section.dim) != shape or section.format == NO_ROWS:
                raise ExchangeError(f"{self._name} {holder} answered with other rows than requested")
            from_wire(section, rows, at)


class GradientEncoder:
    """Encodes gradients as sections for the holders of their rows.

    Args:
        groups: the table groups.
        code: number format of gradients.
        world: number of workers; the gradients of rows are divided by it. The holder divides the gradients of
            pooled vectors, once it has summed them in the worker's order.
        rounding: measures their rounding.
    """

    def __init__(self, groups: Sequence[TableGroup], code: int, world: int, rounding: Rounding) -> None:
        self._groups, self._code, self._world, self._rounding = groups, code, world, rounding

    def sections(
        self,
        requests: Sequence[LookupRequest],
        parts: Parts,
        gradients: Sequence[Array],
        holders: int,
        *,
        ids: bool = True,
    ) -> list[list[Section]]:
        """Return the sections for each holder, without frozen table groups.

        Args:
            requests: requests of the lookup.
            parts: for each request, the part of each holder.
            gradients: float32[request.rows, dim] per request.
            holders: number of holders.
            ids: whether the sections name the ids.

        Raises:
            StoreError: wrong shapes, or a gradient that is not finite in the number format.
        """
        messages: list[list[Section]] = [[] for _ in range(holders)]
        for request, of_request, values in zip(requests, parts, gradients, strict=True):
            group = self._groups[request.group]
            if group.frozen:
                continue
            checked = check_rows(values, request.rows, group.dim, "gradients")
            scale = scale_of(checked, self._code)
            for message, part in zip(messages, of_request, strict=True):
                raw = self._gathered(checked, part, group, scale)
                about = self._code, group.dim, scale, raw
                if ids:
                    section = Section(request.group, part.splits, part.ids, *about, part.bags)
                else:
                    count = request.rows if part.gradients is None else len(part.gradients)
                    section = Section(request.group, _splits(count), None, *about)
                message.append(section)
        return messages

    def _gathered(self, rows: Array, part: ShardPart, group: TableGroup, scale: float) -> Bytes:
        pieces = [(part.gradients, scale / self._world)]
        if part.gradients is not None and part.bags:
            cut = len(part.gradients) - sum(bag.size for bag in part.bags)
            pieces = [(part.gradients[:cut], scale / self._world), (part.gradients[cut:], scale)]
        gathered = []
        for at, factor in pieces:
            raw = finite_bytes(rows, at, self._code, factor, f"{len(rows)} rows of {', '.join(group.tables)}")
            self._rounding.note(rows, raw, self._code, at, factor)
            gathered.append(raw)
        return gathered[0] if len(gathered) == 1 else np.concatenate(gathered)


def finite_bytes(rows: Floats, positions: Positions | None, code: int, factor: float, what: str) -> Bytes:
    """Return gradients `positions` (None: all) times a factor, as raw bytes.

    Raises:
        StoreError: a number is not finite; the error describes the update as `what`.
    """
    raw, finite = gather_gradients(rows, positions, code, factor)
    if not finite:
        raise not_finite(what)
    return raw


def pack_tensors(tensors: Sequence[Floats], form: str) -> list[Buffer]:
    """Return the parts that carry tensors float32[..., dim] in a number format of `CODES`."""
    return pack([row_section(0, _rows(tensor), CODES[form]) for tensor in tensors])


def pack_gradients(tensors: Sequence[Floats], form: str) -> list[Buffer]:
    """Return the parts that carry gradients; in float16 each tensor is scaled by a power of two.

    Raises:
        StoreError: a number is not finite.
    """
    code, sections = CODES[form], []
    for tensor in tensors:
        rows = _rows(tensor)
        scale = scale_of(rows, code)
        raw = finite_bytes(rows, None, code, scale, f"pooled features, {list(tensor.shape)} numbers")
        sections.append(Section(0, _splits(len(rows)), None, code, rows.shape[1], scale, raw))
    return pack(sections)


def unpack_tensors(parts: Sequence[Buffer], shapes: Sequence[Shape] | None = None) -> list[Floats]:
    """Return the tensors of a message, float32 of the expected shapes; default: [n, dim] for any n and dim.

    Raises:
        FrameError: the message is invalid, or has other tensors.
    """
    sections = unpack(parts) if shapes is None else unpack(parts, most=len(shapes))
    if shapes is None:
        shapes = [(section.count, section.dim) for section in sections]
    if len(sections) != len(shapes):
        raise FrameError(f"a message has {len(sections)} tensors, expected {len(shapes)}")
    return [_tensor(section, shape) for section, shape in zip(sections, shapes, strict=True)]


def _tensor(section: Section, shape: Shape) -> Floats:
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    if (section.row_count, section.dim) != (rows, shape[-1]) or section.format == NO_ROWS:
        raise FrameError(f"a tensor in a message does not have the expected shape {list(shape)}")
    return from_wire(section, floats(rows, shape[-1])).reshape(shape)


def _rows(tensor: Floats) -> Floats:
    return np.ascontiguousarray(tensor).reshape(-1, tensor.shape[-1])


def pack_chunk(chunk: RowChunk) -> list[Buffer]:
    """Return the parts for a chunk of rows."""
    return pack_arrays(
        {"ids": chunk.ids, "weights": chunk.weights, "state": chunk.state}, {"table": chunk.table}
    )


def unpack_chunk(parts: Sequence[Buffer]) -> RowChunk:
    """Return the packed chunk as views of the parts; raise a `FrameError` if these do not fit."""
    text = unpack_text(parts[0]) if parts else {}
    table, arrays = text.get("table"), unpack_arrays(text, parts[1:])
    if not isinstance(table, str) or arrays.keys() != {"ids", "weights", "state"}:
        raise FrameError("a chunk lacks its table, ids, weights or state")
    if [array.ndim for array in arrays.values()] != [1, 2, 2] or len({len(a) for a in arrays.values()}) > 1:
        raise FrameError("the arrays of a chunk have different numbers of rows")
    return RowChunk(table, **arrays)
