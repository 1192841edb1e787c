"""The sum of numbers over processes that send fewer bits than float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from satrap.exchange import kernels
from satrap.exchange.telemetry import Rounding
from satrap.exchange.wire.formats import gather_gradients, scale_of
from satrap.store.arrays import address

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

BLOCK = 128
"""Numbers that share a scale in int8."""


class ShortSum:
    """Sums numbers over W processes, sending them in a short number format.

    Each process sums a W-th of the numbers: it receives them from all processes, rounded, widens them, adds
    them in float32 in order of rank, and sends the rounded sum to all. So all end with the same bits, and
    each has sent 2 (W-1) / W times the numbers.

    The error of a sum is the rounding of its terms and of the sum itself. With p for the largest magnitude of
    the numbers that are rounded together, rounding moves x by at most

    - int8: p / 254, for the `BLOCK` numbers that share a scale: their largest magnitude / 127;
    - bfloat16: |x| / 256;
    - float16: |x| / 2048 + p / 2^39, for a W-th of the numbers, which are scaled by a power of two.

    Only magnitudes above 3.38e38 overflow; they may become infinite or NaN.

    Args:
        code: code of the format, one of `kernels.FORMATS`.
        size: number of processes, W.
        swap: an all-to-all: sends part i of W equal, adjacent parts to process i; returns the parts received,
            in order of rank.

    Attributes:
        rounding: measures the rounding of the numbers that this process sends.
    """

    def __init__(self, code: int, size: int, swap: Callable[[Bytes], Bytes]) -> None:
        self._code, self._size, self._swap = code, size, swap
        self.rounding = Rounding()

    @np.errstate(over="ignore", invalid="ignore")
    def __call__(self, numbers: Floats, exact: int) -> None:
        """Replace float32[n] numbers by their sums; the first `exact` ones are not rounded."""
        head, body = numbers[:exact], numbers[exact:]
        blocks = -(-len(body) // (self._size * BLOCK))
        parts = np.zeros((self._size, blocks, BLOCK), np.float32)
        parts.reshape(-1)[: len(body)] = body
        pieces = [piece for part in parts for piece in (head.view(np.uint8), *self._narrow(part))]
        came = self._swap(np.concatenate(pieces)).reshape(self._size, -1)
        head[:], total, widened = 0, np.zeros_like(parts[0]), np.empty_like(parts[0])
        for message in came:
            head += message[: head.nbytes].view(np.float32)
            self._widen(message[head.nbytes :], widened)
            total += widened
        sums = self._swap(np.tile(np.concatenate(self._narrow(total)), self._size))
        for message, part in zip(sums.reshape(self._size, -1), parts, strict=True):
            self._widen(message, part)
        body[:] = parts.reshape(-1)[: len(body)]

    def _narrow(self, rows: Floats) -> tuple[Bytes, Bytes]:
        """Return the scale of float32[n, BLOCK] rows, a float32, and the scaled rows in the short format."""
        scale = scale_of(rows, self._code)
        raw, _ = gather_gradients(rows, None, self._code, scale)
        self.rounding.note(rows, raw, self._code, None, scale)
        return np.array([scale], np.float32).view(np.uint8), raw

    def _widen(self, message: Bytes, out: Floats) -> None:
        """Write the rows that `_narrow` encoded to `out`."""
        kernels.widen(self._code, address(message[4:]), address(out), *map(np.uint64, out.shape))
        if (scale := message[:4].view(np.float32)[0]) != 1:
            out /= scale
