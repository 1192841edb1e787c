"""The sum of numbers over processes that send each other fewer bits than float32 has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from satrap.exchange import kernels
from satrap.exchange.servers.wire import gather_gradients, scale_of
from satrap.exchange.traffic import Rounding
from satrap.store.types import address

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

BLOCK = 128
"""Numbers that share a scale in int8."""


class ShortSum:
    """Adds numbers over W processes; on their way they have a short format.

    Each process adds up a W-th of the numbers. All send it theirs, rounded. It widens them, adds them in
    float32 in order of rank, and sends the rounded sum to all. So all end with the same bits, and each has
    sent 2 (W-1) / W times the numbers.

    A sum is off by what rounds its terms and itself. With p for the largest magnitude of what is rounded
    together, rounding moves x by at most

    - int8: p / 254, of the `BLOCK` numbers that share a scale: their largest magnitude / 127;
    - bfloat16: |x| / 256;
    - float16: |x| / 2048 + p / 2^39, of a W-th of the numbers, which are scaled by a power of two.

    Nothing overflows but magnitudes above 3.38e38, which may become infinite or no number.

    Args:
        code: of the format, one of `kernels.FORMATS`.
        size: number of processes, W.
        swap: given W parts of equal size in a row, sends part i to process i; returns what all sent to this
            one, in order of rank.

    Attributes:
        rounding: how far the numbers that this process sends are rounded.
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
        given = [piece for part in parts for piece in (head.view(np.uint8), *self._narrow(part))]
        came = self._swap(np.concatenate(given)).reshape(self._size, -1)
        head[:], total, one = 0, np.zeros_like(parts[0]), np.empty_like(parts[0])
        for message in came:
            head += message[: head.nbytes].view(np.float32)
            self._widen(message[head.nbytes :], one)
            total += one
        sums = self._swap(np.tile(np.concatenate(self._narrow(total)), self._size))
        for message, part in zip(sums.reshape(self._size, -1), parts, strict=True):
            self._widen(message, part)
        body[:] = parts.reshape(-1)[: len(body)]

    def _narrow(self, rows: Floats) -> tuple[Bytes, Bytes]:
        """Return the scale of float32[n, BLOCK] rows, a float32, and the rows times the scale."""
        scale = scale_of(rows, self._code)
        raw, _ = gather_gradients(rows, None, self._code, scale)
        self.rounding.note(rows, raw, self._code, None, scale)
        return np.array([scale], np.float32).view(np.uint8), raw

    def _widen(self, message: Bytes, out: Floats) -> None:
        """Write to `out` what `_narrow` was given."""
        kernels.widen(self._code, address(message[4:]), address(out), *map(np.uint64, out.shape))
        if (scale := message[:4].view(np.float32)[0]) != 1:
            out /= scale
