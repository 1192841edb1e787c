"""Number formats between processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from satrap.errors import ConfigError
from satrap.runtime.arguments import checked


@checked()
@dataclass(frozen=True, slots=True)
class Wire:
    """Number formats between processes. Stored rows have `embedding.dtype`.

    In "int8" a row consists of multiples, -127 to 127, of its own step, a float32: its largest magnitude /
    127. So each number is off by at most the largest magnitude of its row / 254, plus the rounding of
    float32. In "float16", gradients are scaled per table group and message by a power of two, so that nothing
    overflows. For the compression of `dense` see `satrap.dense.comm.compressed_gradients`; only
    `ConnectedWorkers` uses it, for sums of gradients.

    Args:
        forward: format of looked-up rows. int8: 8-bit numbers with a scale per row.
        backward: format of row gradients; int8 as for rows.
        dense: format of the network's gradients in the all-reduce among workers. int8 (a scale per 128
            numbers), bfloat16 and float16 need the device cpu. For slow networks, on any device: powersgd
            (products of thin matrices), which carries the error of a step over to later steps. Not with
            sharding or `dense.mesh`.
        dense_rank: with `dense: powersgd`: rank of the products. A higher rank is more accurate and sends
            more bytes.

    Raises:
        ConfigError: an unknown format, or a rank below 1.
    """

    forward: Literal["int8", "float16", "float32"] = "float16"
    backward: Literal["int8", "bfloat16", "float16", "float32"] = "bfloat16"
    dense: Literal["int8", "bfloat16", "float16", "float32", "powersgd"] = "float32"
    dense_rank: int = 4

    def __post_init__(self) -> None:
        if self.dense_rank < 1:
            raise ConfigError(f"wire: dense_rank must be >= 1, got {self.dense_rank}")

    @property
    def compresses(self) -> bool:
        """Whether `dense` is a compression, not a format of single numbers."""
        return self.dense == "powersgd"
