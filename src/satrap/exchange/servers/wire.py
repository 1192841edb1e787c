"""How rows look on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError
from satrap.exchange import kernels
from satrap.exchange.servers.sections import ITEM, Section
from satrap.rpc.wire.frames import as_bytes
from satrap.store.types import address

Forward = Literal["float16", "float32"]
Backward = Literal["bfloat16", "float16", "float32"]
Rows = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int32]

CODES = {"float32": kernels.FLOAT32, "float16": kernels.FLOAT16, "bfloat16": kernels.BFLOAT16}
_INFINITE = 0x7F800000
_TOP_EXPONENT = 14
"""float16 gradients are scaled so that the largest is in [2^14, 2^15): half the format's range stays free."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Number formats between workers and shards; the store's own formats do not change.

    Args:
        forward: format of looked-up rows, "float16" (default) or "float32".
        backward: format of gradients, "bfloat16" (default), "float16" (scaled per table group and message by
            a power of two, so that nothing overflows) or "float32".

    Raises:
        ConfigError: another format.
    """

    forward: Forward = "float16"
    backward: Backward = "bfloat16"

    def __post_init__(self) -> None:
        for name, allowed in (("forward", get_args(Forward)), ("backward", get_args(Backward))):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"wire.{name}: {getattr(self, name)!r} is unknown", fix=f"use one of {', '.join(allowed)}"
                )


def to_wire(rows: Rows, code: int) -> npt.NDArray[np.uint8]:
    """Return float32[n, dim] rows as raw bytes in a format; float32 is not copied."""
    if code == kernels.FLOAT32:
        return rows.reshape(-1).view(np.uint8)
    out = np.empty(rows.size * ITEM[code], np.uint8)
    kernels.narrow(code, address(rows), address(out), np.uint64(rows.size), np.float32(1.0))
    return out


def from_wire(section: Section, out: Rows) -> Rows:
    """Write a section's rows to `out`, float32[n, dim], without its scale; return `out`."""
    raw = as_bytes(section.rows)
    kernels.widen(section.format, address(raw), address(out), np.uint64(out.size))
    if section.scale != 1.0:
        out *= np.float32(1.0 / section.scale)
    return out


def place(section: Section, positions: Positions, out: Rows) -> None:
    """Write row i of a section to `out[positions[i]]`."""
    raw = as_bytes(section.rows)
    kernels.widen_rows(section.format, address(raw), np.uint64(section.dim), positions, address(out))


def scale_of(gradients: Rows, code: int) -> float:
    """Return the power of two that uses the range of a format well: 1 unless it is float16."""
    if code != kernels.FLOAT16:
        return 1.0
    top = int(kernels.peak(gradients.reshape(-1).view(np.uint32)))
    if top == 0 or top >= _INFINITE:
        return 1.0
    exponent = max((top >> 23) - 127, -100)
    return float(2.0 ** (_TOP_EXPONENT - exponent))


def gather_gradients(
    gradients: Rows, positions: Positions | None, code: int, scale: float
) -> tuple[npt.NDArray[np.uint8], bool]:
    """Return (rows `positions` (None: all) times `scale` as raw bytes, whether all are finite)."""
    dim = gradients.shape[1]
    count = len(gradients) if positions is None else len(positions)
    out = np.empty(count * dim * ITEM[code], np.uint8)
    source, target, factor = address(gradients), address(out), np.float32(scale)
    if positions is None:
        return out, bool(kernels.narrow(code, source, target, np.uint64(gradients.size), factor))
    return out, bool(kernels.narrow_rows(code, source, np.uint64(dim), positions, target, factor))
