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
