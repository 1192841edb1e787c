"""Dense tensors as message parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from satrap.exchange.servers.row_message import Section, pack, unpack
from satrap.exchange.servers.wire_format import CODES, from_wire, gather_gradients, scale_of, to_wire
from satrap.rpc.wire.frames import Buffer, FrameError
from satrap.store import floats
from satrap.store.arrays import not_finite

Floats = npt.NDArray[np.float32]
Shape = Sequence[int]


def pack_tensors(tensors: Sequence[Floats], form: str) -> list[Buffer]:
    """Return the parts that carry tensors float32[..., dim] in a number format of `CODES`."""
    code = CODES[form]
    return pack([_section(t, code, 1.0, to_wire(_rows(t), code)) for t in tensors])


def pack_gradients(tensors: Sequence[Floats], form: str) -> list[Buffer]:
    """Return the parts that carry gradients; in float16 each tensor is scaled by a power of two.

    Raises:
        StoreError: a number is not finite.
    """
    code, sections = CODES[form], []
    for tensor in tensors:
        rows = _rows(tensor)
        scale = scale_of(rows, code)
        raw, finite = gather_gradients(rows, None, code, scale)
        if not finite:
            raise not_finite(f"pooled features, {list(tensor.shape)} numbers")
        sections.append(_section(tensor, code, scale, raw))
    return pack(sections)


def unpack_tensors(parts: Sequence[Buffer], shapes: Sequence[Shape]) -> list[Floats]:
    """Return the tensors of a message, float32 of the expected shapes.

    Raises:
        FrameError: the message has other tensors.
    """
    sections = unpack(parts, most=len(shapes))
    if len(sections) != len(shapes):
        raise FrameError(f"a message has {len(sections)} tensors, expected {len(shapes)}")
    return [_tensor(section, shape) for section, shape in zip(sections, shapes, strict=True)]


def unpack_rows(parts: Sequence[Buffer]) -> list[Floats]:
    """Return the tensors of a message, float32[n, dim] for any n and dim.

    Raises:
        FrameError: the message is invalid.
    """
    return [_tensor(section, (section.count, section.dim)) for section in unpack(parts)]


def _tensor(section: Section, shape: Shape) -> Floats:
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    if (section.count, section.dim) != (rows, shape[-1]) or section.format not in CODES.values():
        raise FrameError(f"a tensor in a message does not have the expected shape {list(shape)}")
    return from_wire(section, floats(rows, shape[-1])).reshape(shape)


def _rows(tensor: Floats) -> Floats:
    return np.ascontiguousarray(tensor).reshape(-1, tensor.shape[-1])


def _section(tensor: Floats, code: int, scale: float, raw: Buffer) -> Section:
    rows = tensor.size // max(tensor.shape[-1], 1)
    return Section(0, np.array([0, rows], np.int64), None, code, tensor.shape[-1], scale, raw)
