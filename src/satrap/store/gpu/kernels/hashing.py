"""The hash of an id within its table, as in `satrap.store.kernels.hashing`, bit for bit."""

from __future__ import annotations

import triton
import triton.language as tl

FACTOR = tl.constexpr(0xD6E8FEB86659FD93)
INVERSE = tl.constexpr(0xCFEE444D8B59A89B)  # FACTOR * INVERSE = 1, modulo 2^64


@triton.jit
def mix(x: tl.tensor) -> tl.tensor:
    """Scramble uint64; one-to-one."""
    x = (x ^ (x >> 32)) * FACTOR
    x = (x ^ (x >> 32)) * FACTOR
    return x ^ (x >> 32)


@triton.jit
def unmix(x: tl.tensor) -> tl.tensor:
    """Return the uint64 whose mix is x."""
    x = (x ^ (x >> 32)) * INVERSE
    x = (x ^ (x >> 32)) * INVERSE
    return x ^ (x >> 32)


@triton.jit
def mix_all(x: tl.tensor, out: tl.tensor, n: int, BLOCK: tl.constexpr) -> None:
    """Write the mix of each int64, read as its 64 bits."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h = mix(tl.load(x + i, mask=i < n, other=0).to(tl.uint64, bitcast=True))
    tl.store(out + i, h.to(tl.int64, bitcast=True), mask=i < n)
