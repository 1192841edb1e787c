"""Number formats of rows and gradients in messages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satrap.exchange import kernels
from satrap.exchange.kernels import INFINITE, row_bytes
from satrap.settings.wire import Wire
from satrap.store.arrays import Bytes, Floats, address

Positions = npt.NDArray[np.int32]

CODES = dict(zip(("float32", "float16", "bfloat16", "int8"), kernels.FORMATS, strict=True))
_TOP_EXPONENT = 14
"""float16 gradients are scaled so that the largest is in [2^14, 2^15): half the format's range stays free."""


def wire_bytes(wire: Wire, dim: int) -> int:
    """Return the bytes of a row of `dim` numbers and of its gradient."""
    return sum(row_bytes(CODES[each], dim) for each in (wire.forward, wire.backward))


def scale_of(gradients: Floats, code: int) -> float:
    """Return the power of two that makes best use of a format's range: 1 unless it is float16."""
    if code != kernels.FLOAT16:
        return 1.0
    top = int(kernels.peak(gradients.reshape(-1).view(np.uint32)))
    if top == 0 or top >= INFINITE:
        return 1.0
    exponent = max((top >> 23) - 127, -100)
    return float(2.0 ** (_TOP_EXPONENT - exponent))


def to_wire(rows: Floats, code: int, positions: Positions | None = None) -> Bytes:
    """Return rows `positions` (None: all) of float32[n, dim] as raw bytes; all of float32 are not copied."""
    if code == kernels.FLOAT32 and positions is None:
        return rows.reshape(-1).view(np.uint8)
    return gather_gradients(rows, positions, code, 1.0)[0]


def gather_gradients(
    gradients: Floats, positions: Positions | None, code: int, scale: float
) -> tuple[Bytes, bool]:
    """Return (rows `positions` (None: all) times `scale` as raw bytes, whether all are finite)."""
    count, dim = len(gradients) if positions is None else len(positions), gradients.shape[1]
    out = np.empty(count * row_bytes(code, dim), np.uint8)
    source, target, width, factor = address(gradients), address(out), np.uint64(dim), np.float32(scale)
    if positions is None:
        return out, bool(kernels.narrow(code, source, target, np.uint64(count), width, factor))
    return out, bool(kernels.narrow_rows(code, source, width, positions, target, factor))
