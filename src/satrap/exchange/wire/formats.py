"""Number formats of rows and gradients in messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError
from satrap.exchange import kernels
from satrap.exchange.kernels import INFINITE, row_bytes
from satrap.store.arrays import Bytes, Floats, address

Forward = Literal["int8", "float16", "float32"]
Backward = Literal["int8", "bfloat16", "float16", "float32"]
Dense = Literal["int8", "bfloat16", "float16", "float32", "powersgd", "sign"]
Positions = npt.NDArray[np.int32]

CODES = dict(zip(("float32", "float16", "bfloat16", "int8"), kernels.FORMATS, strict=True))
_TOP_EXPONENT = 14
"""float16 gradients are scaled so that the largest is in [2^14, 2^15): half the format's range stays free."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Number formats between workers and shards, and among workers; the store's own formats do not change.

    In "int8" a row consists of multiples, -127 to 127, of its own step, a float32: its largest magnitude /
    127. So each number is off by at most the largest magnitude of its row / 254, plus the rounding of
    float32.

    Args:
        forward: format of looked-up rows, "float16" (default), "int8" or "float32".
        backward: format of gradients, "bfloat16" (default), "int8", "float16" (scaled per table group and
            message by a power of two, so that nothing overflows) or "float32".
        dense: format of the network's gradients, "float32" (default), "bfloat16", "float16" or "int8", with
            blocks of 128 numbers instead of rows; or a compression, "powersgd" or "sign", see
            `satrap.dense.comm.compressed_gradients`. Only `ConnectedWorkers` uses it, for sums of gradients.
        dense_rank: rank of the matrices of "powersgd", default 4.

    Raises:
        ConfigError: an unknown format, or a rank below 1.
    """

    forward: Forward = "float16"
    backward: Backward = "bfloat16"
    dense: Dense = "float32"
    dense_rank: int = 4

    def __post_init__(self) -> None:
        if self.dense_rank < 1:
            raise ConfigError(f"wire.dense_rank is {self.dense_rank}", fix="use 1 or more")
        for name, formats in (("forward", Forward), ("backward", Backward), ("dense", Dense)):
            allowed = get_args(formats)
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"wire.{name}: {getattr(self, name)!r} is unknown", fix=f"use one of {', '.join(allowed)}"
                )

    @property
    def compresses(self) -> bool:
        """Whether `dense` is a compression, not a format of single numbers."""
        return self.dense not in CODES

    def row_bytes(self, dim: int) -> int:
        """Return the bytes of a row of `dim` numbers and of its gradient."""
        return row_bytes(CODES[self.forward], dim) + row_bytes(CODES[self.backward], dim)


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
