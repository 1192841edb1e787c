"""How weights are stored: float32, bfloat16 or float16, the last two rounded stochastically.

A value between two neighbouring 16-bit numbers is rounded to one of them at random, more often to the nearer
one, so it is right on average and small updates are not lost (Gupta et al., ICML 2015). The random bits are
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
from satrap.store.kernels.simd import LANES, broadcast, load_like, store

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


def _like(kind: Any, scalar: Any) -> Any:
    """Return `scalar` (an LLVM type), or a vector of it if `kind` is a vector."""
    return scalar if kind is types.float32 else ir.VectorType(scalar, LANES)


def _constant(kind: Any, value: Any) -> Any:
    return ir.Constant(kind, [value] * LANES if isinstance(kind, ir.VectorType) else value)


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _random_bits(builder: Any, kind: Any, key: Any, column: Any) -> Any:
    """Return 32 random bits per lane, a function of the 64-bit key and the lane's column."""
    integer = _like(kind, _I32)
    high = builder.or_(builder.trunc(builder.lshr(key, _I64(32)), _I32), _I32(1))
    x = builder.trunc(column, _I32)
    if isinstance(integer, ir.VectorType):
        empty, zeros = ir.Constant(integer, ir.Undefined), ir.Constant(integer, [0] * LANES)

        def splat(scalar: Any) -> Any:
            return builder.shuffle_vector(builder.insert_element(empty, scalar, _I32(0)), empty, zeros)

        x = builder.add(splat(x), ir.Constant(integer, list(range(LANES))))
        x = builder.add(builder.mul(splat(high), x), splat(builder.trunc(key, _I32)))
    else:
        x = builder.add(builder.mul(high, x), builder.trunc(key, _I32))
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = builder.mul(
            builder.xor(x, builder.lshr(x, _constant(integer, shift))), _constant(integer, factor)
        )
    return builder.xor(x, builder.lshr(x, _constant(integer, 16)))


def _to_bfloat16(builder: Any, kind: Any, value: Any, random: Any) -> Any:
    """Add 16 random bits below the last place, then cut them off."""
    integer = _like(kind, _I32)
    bits = builder.add(builder.bitcast(value, integer), builder.and_(random, _constant(integer, 0xFFFF)))
    return builder.trunc(builder.lshr(bits, _constant(integer, 16)), _like(kind, _I16))


def _to_float16(builder: Any, kind: Any, value: Any, random: Any) -> Any:
    """Count the value in units of its last place; round the count up if its fraction exceeds a random one."""
    integer, real, half = (_like(kind, t) for t in (_I32, ir.FloatType(), ir.HalfType()))
    bits = builder.bitcast(value, integer)
    power = builder.bitcast(builder.and_(bits, _constant(integer, 0x7F800000)), real)
    least = _constant(real, 2.0**-14)  # below it the units stay 2^-24: the format's subnormal numbers
    unit = builder.fmul(
        builder.select(builder.fcmp_ordered("<", power, least), least, power), _constant(real, 2.0**-10)
    )
    size = builder.bitcast(builder.and_(bits, _constant(integer, 0x7FFFFFFF)), real)
    inverse = builder.sub(_constant(integer, 254 << 23), builder.bitcast(unit, integer))  # 1 / 2^n is exact
    count = builder.fmul(size, builder.bitcast(inverse, real))
    whole = builder.sitofp(builder.fptosi(count, integer), real)
    chance = builder.fmul(
        builder.uitofp(builder.lshr(random, _constant(integer, 8)), real), _constant(real, 2.0**-24)
    )
    up = builder.fcmp_ordered("<", chance, builder.fsub(count, whole))
    whole = builder.fadd(whole, builder.select(up, _constant(real, 1.0), _constant(real, 0.0)))
    sign = builder.and_(bits, _constant(integer, 0x80000000))
    rounded = builder.or_(builder.bitcast(builder.fmul(whole, unit), integer), sign)
    exact = builder.fptrunc(builder.bitcast(rounded, real), half)
    return builder.bitcast(exact, _like(kind, _I16))


def _store_weights(context: Any, fmt: Any, address: Any, value: Any, key: Any, column: Any) -> Any:
    chosen = fmt.instance_class

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, place, number, row, first = arguments
        align = 4
        if chosen is not Float32:
            narrow = _to_bfloat16 if chosen is BFloat16 else _to_float16
            number = narrow(builder, value, number, _random_bits(builder, value, row, first))
            align = 2
        builder.store(number, _pointer(builder, place, number.type), align=align)
        return target.get_dummy_value()

    return types.void(fmt, types.uint64, value, types.uint64, types.uint64), generate


def _load_weights(context: Any, fmt: Any, like: Any, address: Any) -> Any:
    chosen = fmt.instance_class

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        real = _like(like, ir.FloatType())
        if chosen is Float32:
            return builder.load(_pointer(builder, arguments[2], real), align=4)
        short = builder.load(_pointer(builder, arguments[2], _like(like, _I16)), align=2)
        if chosen is Float16:
            return builder.fpext(builder.bitcast(short, _like(like, ir.HalfType())), real)
        integer = _like(like, _I32)
        return builder.bitcast(builder.shl(builder.zext(short, integer), _constant(integer, 16)), real)

    return like(fmt, like, types.uint64), generate


def _weight_bytes(context: Any, fmt: Any) -> Any:
    size = 4 if fmt.instance_class is Float32 else 2

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _I64(size)

    return types.uint64(fmt), generate


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
    """Replace `dim` weights at `address` by their float32 values; there must be room for these."""
    item = weight_bytes(fmt)
    if item != _FOUR:
        for j in range(dim):  # from the back, so that nothing is overwritten before it is read
            k = dim - np.uint64(1) - j
            store(address + k * _FOUR, load_weights(fmt, np.float32(0), address + k * item))
