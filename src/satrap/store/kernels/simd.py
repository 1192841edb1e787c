"""Vectors of 16 float32, memory by address, prefetch and bit operations for Numba kernels.

LLVM maps a vector of 16 to the CPU's instructions: AVX-512, AVX2, SSE or NEON. The vectors are explicit
because automatic vectorisation of these loops often failed when measured (2 to 4 times slower). Addresses are
uint64 byte addresses; the caller must ensure that they are valid.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import intrinsic, overload, register_model

LANES = 16
_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_UniTuple: Any = types.UniTuple
_unpack_tuple: Any = cgutils.unpack_tuple


class Vector16(types.Type):
    """Numba type of a vector of 16 float32; supports + - * /."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


vector16 = Vector16()


@register_model(Vector16)
class _Vector16Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)  # type: ignore[no-untyped-call, unused-ignore]


def emit(make: Callable[..., Any]) -> Any:
    """Return Numba's code-generating function; `make` takes LLVM's builder and the arguments."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = make(builder, *arguments)
        return target.get_dummy_value() if signature.return_type == types.void else made

    return generate


def like(kind: Any, scalar: Any) -> Any:
    """Return an LLVM type, or a vector of it if `kind` is the vector."""
    return ir.VectorType(scalar, LANES) if kind is vector16 else scalar


def constant(kind: Any, value: Any) -> Any:
    """Return a constant of an LLVM type; in a vector, a single value is in every lane."""
    every = isinstance(kind, ir.VectorType) and not isinstance(value, list)
    return ir.Constant(kind, [value] * kind.count if every else value)


def pointer(builder: Any, address: Any, target: Any) -> Any:
    """Return an address as a pointer to an LLVM type."""
    return builder.inttoptr(address, target.as_pointer())


def splat(builder: Any, scalar: Any, lanes: int = LANES) -> Any:
    """Return the vector whose lanes are all `scalar`."""
    vector = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(vector, scalar, _I32(0))
    return builder.shuffle_vector(first, vector, constant(ir.VectorType(_I32, lanes), 0))


def scrambled(builder: Any, x: Any) -> Any:
    """Return 32 bits, or 32 in each lane, scrambled; one-to-one."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = builder.mul(builder.xor(x, builder.lshr(x, constant(x.type, shift))), constant(x.type, factor))
    return builder.xor(x, builder.lshr(x, constant(x.type, 16)))


def _load_like(context: Any, kind: Any, address: Any) -> Any:
    def load(builder: Any, _: Any, place: Any) -> Any:
        return builder.load(pointer(builder, place, like(kind, _FLOAT)), align=4)

    return kind(kind, types.uint64), emit(load)


def _store(context: Any, address: Any, value: Any) -> Any:
    def write(builder: Any, place: Any, x: Any) -> Any:
        return builder.store(x, pointer(builder, place, x.type), align=4)

    return types.void(types.uint64, value), emit(write)


def _store_aside(context: Any, address: Any, value: Any) -> Any:
    def write(builder: Any, place: Any, x: Any) -> None:
        stored = builder.store(x, pointer(builder, place, x.type), align=64)
        stored.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))

    return types.void(types.uint64, value), emit(write)


def _settle(context: Any) -> Any:
    return types.void(), emit(lambda builder: builder.fence("seq_cst"))


def _broadcast(context: Any, scalar: Any) -> Any:
    return vector16(types.float32), emit(splat)


def _root(context: Any, value: Any) -> Any:
    def call(builder: Any, x: Any) -> Any:
        name = "llvm.sqrt.v16f32" if value is vector16 else "llvm.sqrt.f32"
        function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(x.type, [x.type]))
        return builder.call(function, [x])

    return value(value), emit(call)


def _total(context: Any, value: Any) -> Any:
    def add(builder: Any, vector: Any) -> Any:
        lanes = LANES
        while lanes > 1:  # halves added pairwise: the same order on every CPU
            half = lanes // 2
            kind = ir.VectorType(_I32, half)
            low, high = (
                builder.shuffle_vector(vector, vector, constant(kind, list(range(start, start + half))))
                for start in (0, half)
            )
            vector, lanes = builder.fadd(low, high), half
        return builder.extract_element(vector, _I32(0))

    return types.float32(vector16), emit(add)


def _larger(context: Any, bits: Any, value: Any) -> Any:
    def choose(builder: Any, x: Any, y: Any) -> Any:
        kind = like(value, _I32)
        old, new = builder.bitcast(x, kind), builder.bitcast(y, kind)
        new = builder.and_(new, constant(kind, 0x7FFFFFFF))
        return builder.bitcast(builder.select(builder.icmp_unsigned(">", new, old), new, old), x.type)

    return value(value, value), emit(choose)


def _finite(context: Any, value: Any) -> Any:
    def compare(builder: Any, x: Any) -> Any:
        kind = like(value, _I32)
        below = builder.icmp_unsigned("<", builder.bitcast(x, kind), constant(kind, 0x7F800000))
        if value is not vector16:
            return below
        every = ir.IntType(LANES)
        return builder.icmp_unsigned("==", builder.bitcast(below, every), every(2**LANES - 1))

    return types.boolean(value), emit(compare)


def _prefetcher(write: int) -> Callable[[Any, Any], Any]:
    def prefetch(context: Any, address: Any) -> Any:
        def call(builder: Any, place: Any) -> Any:
            line = pointer(builder, place, ir.IntType(8))
            kind = ir.FunctionType(ir.VoidType(), [line.type, _I32, _I32, _I32])
            function = builder.module.declare_intrinsic("llvm.prefetch", [line.type], kind)
            return builder.call(function, [line, _I32(write), _I32(3), _I32(1)])

        return types.void(types.uint64), emit(call)

    return prefetch


def _match8(context: Any, address: Any, key: Any) -> Any:
    def compare(builder: Any, place: Any, wanted: Any) -> Any:
        keys = builder.load(pointer(builder, place, ir.VectorType(_I64, 8)), align=8)
        equal = builder.icmp_unsigned("==", keys, splat(builder, wanted, 8))
        return builder.zext(builder.bitcast(equal, ir.IntType(8)), _I32)

    return types.uint32(types.uint64, types.uint64), emit(compare)


def _trailing_zeros(context: Any, bits: Any) -> Any:
    def count(builder: Any, x: Any) -> Any:
        return builder.zext(builder.cttz(x, ir.IntType(1)(1)), _I64)

    return types.uint64(types.uint32), emit(count)


def _zeros8(context: Any, address: Any) -> Any:
    def compare(builder: Any, place: Any) -> Any:
        kind = ir.VectorType(_I32, 8)
        values = builder.load(pointer(builder, place, kind), align=4)
        empty = builder.icmp_unsigned("==", values, constant(kind, 0))
        return builder.zext(builder.bitcast(empty, ir.IntType(8)), _I32)

    return types.uint32(types.uint64), emit(compare)


def _uniform(context: Any, low: Any, high: Any, column: Any, unit: Any) -> Any:
    kind = ir.VectorType(_I32, LANES)

    def draw(builder: Any, *arguments: Any) -> Any:
        first, factor, start, scale = (splat(builder, argument) for argument in arguments)
        x = builder.add(start, constant(kind, list(range(1, LANES + 1))))
        x = scrambled(builder, builder.add(first, builder.mul(factor, x)))
        # odd whole numbers in (-2^23, 2^23): exact in float32, never the ends of the interval
        x = builder.shl(builder.lshr(x, constant(kind, 9)), constant(kind, 1))
        x = builder.sub(x, constant(kind, 8388607))
        return builder.fmul(builder.sitofp(x, _VECTOR), scale)

    return vector16(types.uint32, types.uint32, types.uint32, types.float32), emit(draw)


def _clamp(context: Any, value: Any, bound: Any) -> Any:
    def choose(builder: Any, x: Any, high: Any) -> Any:
        low = builder.fsub(constant(x.type, -0.0), high)
        x = builder.select(builder.fcmp_ordered("<", x, high), x, high)
        return builder.select(builder.fcmp_ordered(">", x, low), x, low)

    return value(value, value), emit(choose)


def _where_zero(context: Any, test: Any, then: Any, otherwise: Any) -> Any:
    def choose(builder: Any, x: Any, one: Any, other: Any) -> Any:
        return builder.select(builder.fcmp_ordered("==", x, constant(x.type, 0.0)), one, other)

    return test(test, test, test), emit(choose)


def _load_double(context: Any, address: Any) -> Any:
    def load(builder: Any, place: Any) -> Any:
        return builder.load(pointer(builder, place, ir.DoubleType()), align=8)

    return types.float64(types.uint64), emit(load)


def _spread(context: Any, values: Any) -> Any:
    if values is types.none:
        return types.none(types.none), emit(lambda builder, none: none)
    wide = _UniTuple(vector16, len(values))

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = [splat(builder, scalar) for scalar in _unpack_tuple(builder, arguments[0])]
        return target.make_tuple(builder, wide, lanes)

    return wide(values), generate


def _intrinsic(typing: Callable[..., Any]) -> Any:
    return intrinsic(typing)


def _integer_access(bits: int, kind: Any) -> tuple[Any, Any]:
    def load(context: Any, address: Any) -> Any:
        def read(builder: Any, place: Any) -> Any:
            return builder.load(pointer(builder, place, ir.IntType(bits)), align=bits // 8)

        return kind(types.uint64), emit(read)

    def store(context: Any, address: Any, value: Any) -> Any:
        def write(builder: Any, place: Any, x: Any) -> Any:
            return builder.store(x, pointer(builder, place, ir.IntType(bits)), align=bits // 8)

        return types.void(types.uint64, kind), emit(write)

    return _intrinsic(load), _intrinsic(store)


load_like = _intrinsic(_load_like)
"""load_like(like, address): read the type of `like` (float32 or a vector of 16) at `address`."""
store = _intrinsic(_store)
"""store(address, value): write a float32 or a vector of 16."""
store_aside = _intrinsic(_store_aside)
"""store_aside(address, vector): write a vector of 16 past the caches; `address` is a multiple of 64."""
settle: Callable[[], None] = _intrinsic(_settle)
"""settle(): makes writes of `store_aside` visible to other threads before any later write."""
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
clamp = _intrinsic(_clamp)
"""clamp(x, bound): x if it is in [-bound, bound], else the nearer end."""
where_zero = _intrinsic(_where_zero)
"""where_zero(test, then, otherwise): `then` in the lanes where `test` is 0."""
load_double = _intrinsic(_load_double)
"""load_double(address): the float64 at `address`."""
spread = _intrinsic(_spread)
"""spread(values): a tuple of float32 as a tuple of vectors, every lane the same; None as None."""
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
        return vector16(vector16, vector16), emit(lambda builder, a, b: getattr(builder, instruction)(a, b))

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
