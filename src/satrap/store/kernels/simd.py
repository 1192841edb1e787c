"""Vectors of 16 float32, memory by address, prefetch and bit operations for Numba kernels.

LLVM maps a vector of 16 to what the CPU has: AVX-512, AVX2, SSE or NEON. The vectors are explicit because
automatic vectorisation of these loops often failed when measured (2 to 4 times slower). Addresses are uint64
byte addresses; the caller must make sure that they are valid.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import intrinsic, overload, register_model

LANES = 16
_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


class Vector16(types.Type):
    """Numba type of a vector of 16 float32; supports + - * /."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


vector16 = Vector16()


@register_model(Vector16)
class _Vector16Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)  # type: ignore[no-untyped-call, unused-ignore]


def _llvm(kind: Any) -> Any:
    return _VECTOR if kind is vector16 else _FLOAT


def _pointer(builder: Any, address: Any, target: Any) -> Any:
    return builder.inttoptr(address, target.as_pointer())


def _splat(builder: Any, scalar: Any, lanes: int) -> Any:
    vector = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(vector, scalar, _I32(0))
    return builder.shuffle_vector(first, vector, ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes))


def _load_like(context: Any, like: Any, address: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(builder, arguments[1], _llvm(like)), align=4)

    return like(like, types.uint64), generate


def _store(context: Any, address: Any, value: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _pointer(builder, arguments[0], _llvm(value)), align=4)
        return target.get_dummy_value()

    return types.void(types.uint64, value), generate


def _store_aside(context: Any, address: Any, value: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        stored = builder.store(arguments[1], _pointer(builder, arguments[0], _llvm(value)), align=64)
        stored.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))
        return target.get_dummy_value()

    return types.void(types.uint64, value), generate


def _settle(context: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return target.get_dummy_value()

    return types.void(), generate


def _broadcast(context: Any, scalar: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _splat(builder, arguments[0], LANES)

    return vector16(types.float32), generate


def _root(context: Any, value: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = _llvm(value)
        name = "llvm.sqrt.v16f32" if value is vector16 else "llvm.sqrt.f32"
        function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(kind, [kind]))
        return builder.call(function, [arguments[0]])

    return value(value), generate


def _total(context: Any, value: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, lanes = arguments[0], LANES
        while lanes > 1:  # halves added pairwise: the same order on every CPU
            half = lanes // 2
            low, high = (
                builder.shuffle_vector(
                    vector, vector, ir.Constant(ir.VectorType(_I32, half), list(range(start, start + half)))
                )
                for start in (0, half)
            )
            vector, lanes = builder.fadd(low, high), half
        return builder.extract_element(vector, _I32(0))

    return types.float32(vector16), generate


def _larger(context: Any, bits: Any, value: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = _bits_of(value)
        bits, new = (builder.bitcast(argument, kind) for argument in arguments)
        new = builder.and_(new, ir.Constant(kind, _each(kind, 0x7FFFFFFF)))
        return builder.bitcast(builder.select(builder.icmp_unsigned(">", new, bits), new, bits), _llvm(value))

    return value(value, value), generate


def _finite(context: Any, value: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = _bits_of(value)
        limit = ir.Constant(kind, _each(kind, 0x7F800000))
        below = builder.icmp_unsigned("<", builder.bitcast(arguments[0], kind), limit)
        if value is not vector16:
            return below
        every = ir.IntType(LANES)
        return builder.icmp_unsigned("==", builder.bitcast(below, every), every(2**LANES - 1))

    return types.boolean(value), generate


def _bits_of(kind: Any) -> Any:
    return ir.VectorType(_I32, LANES) if kind is vector16 else _I32


def _each(kind: Any, value: int) -> Any:
    return value if kind is _I32 else [value] * LANES


def _prefetcher(write: int) -> Callable[[Any, Any], Any]:
    def prefetch(context: Any, address: Any) -> Any:
        def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = _pointer(builder, arguments[0], ir.IntType(8))
            kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
            function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
            builder.call(function, [pointer, _I32(write), _I32(3), _I32(1)])
            return target.get_dummy_value()

        return types.void(types.uint64), generate

    return prefetch


def _match8(context: Any, address: Any, key: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        keys = builder.load(_pointer(builder, arguments[0], ir.VectorType(_I64, 8)), align=8)
        equal = builder.icmp_unsigned("==", keys, _splat(builder, arguments[1], 8))
        return builder.zext(builder.bitcast(equal, ir.IntType(8)), _I32)

    return types.uint32(types.uint64, types.uint64), generate


def _trailing_zeros(context: Any, bits: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.cttz(arguments[0], ir.IntType(1)(1)), _I64)

    return types.uint64(types.uint32), generate


def _zeros8(context: Any, address: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(_I32, 8)
        values = builder.load(_pointer(builder, arguments[0], kind), align=4)
        empty = builder.icmp_unsigned("==", values, ir.Constant(kind, [0] * 8))
        return builder.zext(builder.bitcast(empty, ir.IntType(8)), _I32)

    return types.uint32(types.uint64), generate


def _uniform(context: Any, low: Any, high: Any, column: Any, unit: Any) -> Any:
    kind = ir.VectorType(_I32, LANES)

    def lanes(values: Any) -> Any:
        return ir.Constant(kind, values if isinstance(values, list) else [values] * LANES)

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first, factor, start, scale = (_splat(builder, argument, LANES) for argument in arguments)
        x = builder.add(start, lanes(list(range(1, LANES + 1))))
        x = builder.add(first, builder.mul(factor, x))
        for shift, multiplier in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = builder.mul(builder.xor(x, builder.lshr(x, lanes(shift))), lanes(multiplier))
        x = builder.xor(x, builder.lshr(x, lanes(16)))
        # odd whole numbers in (-2^23, 2^23): exact in float32, never the ends of the interval
        x = builder.sub(builder.shl(builder.lshr(x, lanes(9)), lanes(1)), lanes(8388607))
        return builder.fmul(builder.sitofp(x, _VECTOR), scale)

    return vector16(types.uint32, types.uint32, types.uint32, types.float32), generate


def _intrinsic(typing: Callable[..., Any]) -> Any:
    return intrinsic(typing)


def _integer_access(bits: int, kind: Any) -> tuple[Any, Any]:
    def load(context: Any, address: Any) -> Any:
        def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load(_pointer(builder, arguments[0], ir.IntType(bits)), align=bits // 8)

        return kind(types.uint64), generate

    def store(context: Any, address: Any, value: Any) -> Any:
        def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store(arguments[1], _pointer(builder, arguments[0], ir.IntType(bits)), align=bits // 8)
            return target.get_dummy_value()

        return types.void(types.uint64, kind), generate

    return _intrinsic(load), _intrinsic(store)


load_like = _intrinsic(_load_like)
"""load_like(like, address): read the type of `like` (float32 or a vector of 16) at `address`."""
store = _intrinsic(_store)
"""store(address, value): write a float32 or a vector of 16."""
store_aside = _intrinsic(_store_aside)
"""store_aside(address, vector): write a vector of 16 past the caches; `address` is a multiple of 64."""
settle: Callable[[], None] = _intrinsic(_settle)
"""settle(): makes writes of `store_aside` visible to other threads before anything that follows."""
broadcast = _intrinsic(_broadcast)
"""broadcast(x): the vector whose 16 lanes are x."""
root = _intrinsic(_root)
"""root(x): correctly rounded square root of a float32 or of each lane."""
total: Callable[[Any], np.float32] = _intrinsic(_total)
"""total(v): sum of the 16 lanes, halves added pairwise."""
larger = _intrinsic(_larger)
"""larger(x, y): the larger of x >= 0 and |y| in each lane; NaN is larger than infinity."""
finite: Callable[[Any], bool] = _intrinsic(_finite)
"""finite(x): whether no lane of what `larger` returned is infinite or NaN."""
prefetch: Callable[[np.uint64], None] = _intrinsic(_prefetcher(0))
"""prefetch(address): start fetching the cache line for reading."""
prefetch_write: Callable[[np.uint64], None] = _intrinsic(_prefetcher(1))
"""prefetch_write(address): start fetching the cache line for writing."""
match8: Callable[[np.uint64, np.uint64], np.uint32] = _intrinsic(_match8)
"""match8(address, key): bit i is set where the i-th of the 8 uint64 at `address` equals `key`."""
trailing_zeros: Callable[[np.uint32], np.uint64] = _intrinsic(_trailing_zeros)
"""trailing_zeros(bits): position of the lowest set bit of a non-zero uint32, as uint64."""
uniform16: Any = _intrinsic(_uniform)
"""uniform16(low, high, column, unit): 16 numbers in (-2^23, 2^23) * unit, for columns from `column`."""
zeros8: Callable[[np.uint64], np.uint32] = _intrinsic(_zeros8)
"""zeros8(address): bit i is set where the i-th of the 8 uint32 at `address` is 0."""
load_u64: Callable[[np.uint64], np.uint64]
store_u64: Callable[[np.uint64, np.uint64], None]
load_u64, store_u64 = _integer_access(64, types.uint64)
load_u32: Callable[[np.uint64], np.uint32]
store_u32: Callable[[np.uint64, np.uint32], None]
load_u32, store_u32 = _integer_access(32, types.uint32)
load_i64: Callable[[np.uint64], int]
store_i64: Callable[[np.uint64, int], None]
load_i64, store_i64 = _integer_access(64, types.int64)
load_i32: Callable[[np.uint64], int]
store_i32: Callable[[np.uint64, int], None]
load_i32, store_i32 = _integer_access(32, types.int32)


def _operator(symbol: Any, instruction: str) -> None:
    def operation(context: Any, x: Any, y: Any) -> Any:
        def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments)

        return vector16(vector16, vector16), generate

    compiled = _intrinsic(operation)

    def typed(x: Any, y: Any) -> Any:
        def apply(x: Any, y: Any) -> Any:
            return compiled(x, y)

        return apply if x is vector16 and y is vector16 else None

    overload(symbol)(typed)


for _symbol, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _operator(_symbol, _instruction)
