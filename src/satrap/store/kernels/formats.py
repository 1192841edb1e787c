"""Number formats of weights: float32, bfloat16 or float16; 16-bit formats are rounded stochastically.

A value between two adjacent 16-bit numbers is rounded to one of them at random, more often to the nearer one,
so it is correct on average and small updates are not lost (Gupta et al., ICML 2015). The random bits are
a pure function of (`noise`, key, column). The caller must clamp values beyond the format's range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from satrap.store.kernels.jit import helper
from satrap.store.kernels.simd import (
    LANES,
    broadcast,
    constant,
    emit,
    like,
    load_like,
    pointer,
    scrambled,
    splat,
    store,
)

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_ZERO = np.uint64(0)
_FOUR = np.uint64(4)
_LANES = np.uint64(LANES)


class Float32(NamedTuple):
    """Unchanged weights; 4 bytes each."""

    noise: np.uint64


class BFloat16(NamedTuple):
    """The upper half of a float32: its range, 8 significant bits; 2 bytes each."""

    noise: np.uint64


class Float16(NamedTuple):
    """IEEE half precision: 11 significant bits, at most 65504, steps of 6e-8 near zero; 2 bytes each."""

    noise: np.uint64


Format = Float32 | BFloat16 | Float16
FORMATS: dict[str, type[Format]] = {"float32": Float32, "bfloat16": BFloat16, "float16": Float16}
LARGEST: dict[type[Format], float] = {
    Float32: float(np.finfo(np.float32).max),
    BFloat16: float(np.uint32(0x7F7F0000).view(np.float32)),
    Float16: 65504.0,
}
"""The largest finite weight of each format."""


def _random_bits(builder: Any, kind: Any, key: Any, column: Any) -> Any:
    """Return 32 random bits per lane, a function of the 64-bit key and the lane's column."""
    integer = like(kind, _I32)
    high = builder.or_(builder.trunc(builder.lshr(key, _I64(32)), _I32), _I32(1))
    x = builder.trunc(column, _I32)
    if isinstance(integer, ir.VectorType):
        x = builder.add(splat(builder, x), constant(integer, list(range(LANES))))
        x = builder.add(builder.mul(splat(builder, high), x), splat(builder, builder.trunc(key, _I32)))
    else:
        x = builder.add(builder.mul(high, x), builder.trunc(key, _I32))
    return scrambled(builder, x)


def _to_bfloat16(builder: Any, kind: Any, value: Any, random: Any) -> Any:
    """Add 16 random bits below the last place, then cut them off."""
    integer = like(kind, _I32)
    bits = builder.add(builder.bitcast(value, integer), builder.and_(random, constant(integer, 0xFFFF)))
    return builder.trunc(builder.lshr(bits, constant(integer, 16)), like(kind, _I16))


def _to_float16(builder: Any, kind: Any, value: Any, random: Any) -> Any:
    """Count the value in units of its last place; round the count up if its fraction exceeds a random one."""
    integer, real, half = (like(kind, t) for t in (_I32, ir.FloatType(), ir.HalfType()))
    bits = builder.bitcast(value, integer)
    power = builder.bitcast(builder.and_(bits, constant(integer, 0x7F800000)), real)
    least = constant(real, 2.0**-14)  # below it the units stay 2^-24: the format's subnormal numbers
    unit = builder.fmul(
        builder.select(builder.fcmp_ordered("<", power, least), least, power), constant(real, 2.0**-10)
    )
    size = builder.bitcast(builder.and_(bits, constant(integer, 0x7FFFFFFF)), real)
    inverse = builder.sub(constant(integer, 254 << 23), builder.bitcast(unit, integer))  # 1 / 2^n is exact
    count = builder.fmul(size, builder.bitcast(inverse, real))
    whole = builder.sitofp(builder.fptosi(count, integer), real)
    chance = builder.fmul(
        builder.uitofp(builder.lshr(random, constant(integer, 8)), real), constant(real, 2.0**-24)
    )
    up = builder.fcmp_ordered("<", chance, builder.fsub(count, whole))
    whole = builder.fadd(whole, builder.select(up, constant(real, 1.0), constant(real, 0.0)))
    sign = builder.and_(bits, constant(integer, 0x80000000))
    rounded = builder.or_(builder.bitcast(builder.fmul(whole, unit), integer), sign)
    exact = builder.fptrunc(builder.bitcast(rounded, real), half)
    return builder.bitcast(exact, like(kind, _I16))


def _store_weights(context: Any, fmt: Any, address: Any, value: Any, key: Any, column: Any) -> Any:
    chosen = fmt.instance_class

    def write(builder: Any, _: Any, place: Any, number: Any, row: Any, first: Any) -> Any:
        align = 4
        if chosen is not Float32:
            narrow = _to_bfloat16 if chosen is BFloat16 else _to_float16
            number = narrow(builder, value, number, _random_bits(builder, value, row, first))
            align = 2
        return builder.store(number, pointer(builder, place, number.type), align=align)

    return types.void(fmt, types.uint64, value, types.uint64, types.uint64), emit(write)


def _load_weights(context: Any, fmt: Any, kind: Any, address: Any) -> Any:
    chosen = fmt.instance_class

    def read(builder: Any, _: Any, __: Any, place: Any) -> Any:
        real, integer = like(kind, ir.FloatType()), like(kind, _I32)
        if chosen is Float32:
            return builder.load(pointer(builder, place, real), align=4)
        short = builder.load(pointer(builder, place, like(kind, _I16)), align=2)
        if chosen is Float16:
            return builder.fpext(builder.bitcast(short, like(kind, ir.HalfType())), real)
        return builder.bitcast(builder.shl(builder.zext(short, integer), constant(integer, 16)), real)

    return kind(fmt, kind, types.uint64), emit(read)


def _weight_bytes(context: Any, fmt: Any) -> Any:
    size = 4 if fmt.instance_class is Float32 else 2
    return types.uint64(fmt), emit(lambda builder, _: _I64(size))


_made: Any = intrinsic
load_weights = _made(_load_weights)
"""load_weights(format, like, address): the type of `like` (float32 or a vector of 16), widened exactly."""
store_weights = _made(_store_weights)
"""store_weights(format, address, value, key, column): round and write; `column` is for the first lane."""
weight_bytes: Callable[[Format], np.uint64] = _made(_weight_bytes)
"""weight_bytes(format): 4 or 2, as uint64."""


def padded_bytes(fmt: type[Format], dim: int) -> int:
    """Return the bytes of `dim` weights, padded to a multiple of 4, where the float32 state starts."""
    return 4 * dim if fmt is Float32 else (2 * dim + 3) // 4 * 4


@helper
def read_weights(fmt: Format, source: np.uint64, target: np.uint64, dim: np.uint64) -> None:
    """Write the `dim` weights of the row at `source` to `target` as float32."""
    full = dim & ~np.uint64(15)
    item = weight_bytes(fmt)
    zero = np.float32(0)
    zeros = broadcast(zero)
    for k in range(_ZERO, full, _LANES):
        store(target + k * _FOUR, load_weights(fmt, zeros, source + k * item))
    for k in range(full, dim):
        store(target + k * _FOUR, load_weights(fmt, zero, source + k * item))


@helper
def write_weights(fmt: Format, source: np.uint64, target: np.uint64, dim: np.uint64, key: np.uint64) -> None:
    """Round `dim` float32 at `source` to the format, and write them to `target`, which may be `source`."""
    full = dim & ~np.uint64(15)
    item = weight_bytes(fmt)
    zero = np.float32(0)
    zeros = broadcast(zero)
    for k in range(_ZERO, full, _LANES):
        store_weights(fmt, target + k * item, load_like(zeros, source + k * _FOUR), key, k)
    for k in range(full, dim):
        store_weights(fmt, target + k * item, load_like(zero, source + k * _FOUR), key, k)


@helper
def widen_in_place(fmt: Format, address: np.uint64, dim: np.uint64) -> None:
    """Replace `dim` weights at `address` by their float32 values; the memory must hold these."""
    item = weight_bytes(fmt)
    if item != _FOUR:
        for j in range(dim):  # from the back, so that no weight is overwritten before it is read
            k = dim - np.uint64(1) - j
            store(address + k * _FOUR, load_weights(fmt, np.float32(0), address + k * item))
