"""Number formats of weights, and first weights, as in `satrap.store.kernels.formats`, bit for bit."""

from __future__ import annotations

import triton
import triton.language as tl

from satrap.store.gpu.kernels.hashing import mix

FLOAT32 = tl.constexpr(0)
BFLOAT16 = tl.constexpr(1)
FLOAT16 = tl.constexpr(2)


@triton.jit
def random_bits(key: tl.tensor, column: tl.tensor) -> tl.tensor:
    """Return uint32 random bits, a function of a uint64 key and a column."""
    x = ((key >> 32).to(tl.uint32) | 1) * column.to(tl.uint32) + key.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def narrowed(x: tl.tensor, key: tl.tensor, column: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Return float32 as they are stored: 16-bit formats are rounded at random, the bits are in int16."""
    if FORMAT == FLOAT32:
        return x
    else:
        random = random_bits(key, column)
        bits = x.to(tl.uint32, bitcast=True)
        if FORMAT == BFLOAT16:
            half = ((bits + (random & 0xFFFF)) >> 16).to(tl.uint16)
        else:
            # count in units of the last place; below 2^-14 these stay 2^-24; 1 / 2^n is exact
            power = (bits & 0x7F800000).to(tl.float32, bitcast=True)
            unit = tl.where(power < 2.0**-14, 2.0**-14, power) * 2.0**-10
            inverse = (0x7F000000 - unit.to(tl.uint32, bitcast=True)).to(tl.float32, bitcast=True)
            count = (bits & 0x7FFFFFFF).to(tl.float32, bitcast=True) * inverse
            whole = count.to(tl.int32).to(tl.float32)
            chance = (random >> 8).to(tl.float32) * 2.0**-24
            whole = whole + tl.where(chance < count - whole, 1.0, 0.0)
            size = (whole * unit).to(tl.uint32, bitcast=True) | (bits & 0x80000000)
            half = size.to(tl.float32, bitcast=True).to(tl.float16).to(tl.uint16, bitcast=True)
        return half.to(tl.int16, bitcast=True)


@triton.jit
def widened(x: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Return stored weights as float32, exactly."""
    if FORMAT == FLOAT32:
        return x
    elif FORMAT == BFLOAT16:
        return (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def first_weights(key: tl.tensor, scale: tl.tensor, column: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Return first weights as they are stored, a function of a uint64 key (id xor seed of the table)."""
    h = mix(key)
    odd = (random_bits(h, column + 1) >> 9).to(tl.int32) * 2 - 8388607  # exact in float32
    return narrowed(odd.to(tl.float32) * (scale * 2.0**-23), mix(h), column, FORMAT)
