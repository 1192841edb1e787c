"""Operations on a float32 or a vector of 16, lane by lane, beyond the arithmetic of `simd`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from satrap.store.kernels.simd import LANES, vector16

_UniTuple: Any = types.UniTuple
_unpack_tuple: Any = cgutils.unpack_tuple


def _constant(kind: Any, value: float) -> Any:
    if kind is vector16:
        return ir.Constant(ir.VectorType(ir.FloatType(), LANES), [value] * LANES)
    return ir.Constant(ir.FloatType(), value)


def _clamp(context: Any, value: Any, bound: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, high = arguments
        low = builder.fsub(_constant(value, -0.0), high)
        x = builder.select(builder.fcmp_ordered("<", x, high), x, high)
        return builder.select(builder.fcmp_ordered(">", x, low), x, low)

    return value(value, value), generate


def _where_zero(context: Any, test: Any, then: Any, otherwise: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = builder.fcmp_ordered("==", arguments[0], _constant(test, 0.0))
        return builder.select(zero, arguments[1], arguments[2])

    return test(test, test, test), generate


def _load_double(context: Any, address: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.DoubleType().as_pointer()), align=8)

    return types.float64(types.uint64), generate


def _spread(context: Any, values: Any) -> Any:
    if values is types.none:
        return types.none(types.none), lambda target, builder, signature, arguments: target.get_dummy_value()
    wide = _UniTuple(vector16, len(values))

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(ir.FloatType(), LANES)
        empty, zeros = (
            ir.Constant(kind, ir.Undefined),
            ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES),
        )
        lanes = [
            builder.shuffle_vector(builder.insert_element(empty, scalar, ir.IntType(32)(0)), empty, zeros)
            for scalar in _unpack_tuple(builder, arguments[0])
        ]
        return target.make_tuple(builder, wide, lanes)

    return wide(values), generate


_made: Any = intrinsic
clamp = _made(_clamp)
"""clamp(x, bound): x if it is inside [-bound, bound], else the nearer end."""
where_zero = _made(_where_zero)
"""where_zero(test, then, otherwise): `then` in the lanes where `test` is 0."""
load_double = _made(_load_double)
"""load_double(address): the float64 there."""
spread = _made(_spread)
"""spread(values): a tuple of float32 as a tuple of vectors, every lane the same; None as None."""
