"""Unaligned memory access and 16-bit conversions of 16 numbers at once, for Numba kernels.

Arrays that arrive from a socket lie at any address, so nothing here assumes alignment. LLVM turns `fpext` and
`fptrunc` into the CPU's own conversions (F16C, AVX-512, NEON): round to nearest, ties to even.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
_EXPONENT32 = 0x7F800000
_EXPONENT16 = 0x7C00
_I16 = ir.IntType(16)
_I32 = ir.IntType(32)
_FLOAT = ir.FloatType()
_HALF = ir.HalfType()


def _shape(scalar: Any, lanes: int) -> Any:
    return scalar if lanes == 1 else ir.VectorType(scalar, lanes)


def _all(scalar: Any, lanes: int, value: int) -> Any:
    return ir.Constant(scalar, value) if lanes == 1 else ir.Constant(_shape(scalar, lanes), [value] * lanes)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _save(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def _any(builder: Any, flags: Any, lanes: int) -> Any:
    bits = flags if lanes == 1 else builder.bitcast(flags, ir.IntType(lanes))
    return builder.zext(builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0)), _I32)


def _full(builder: Any, bits: Any, scalar: Any, lanes: int, mask: int) -> Any:
    """Whether the exponent, chosen by `mask`, is all ones: infinite or NaN."""
    masked = builder.and_(bits, _all(scalar, lanes, mask))
    return builder.icmp_unsigned("==", masked, _all(scalar, lanes, mask))


def _scaled(builder: Any, source: Any, scale: Any, lanes: int) -> Any:
    value = _load(builder, source, _shape(_FLOAT, lanes))
    if lanes == 1:
        return builder.fmul(value, scale)
    empty = ir.Constant(value.type, ir.Undefined)
    first = builder.insert_element(empty, scale, _I32(0))
    zeros = ir.Constant(_shape(_I32, lanes), [0] * lanes)
    return builder.fmul(value, builder.shuffle_vector(first, empty, zeros))


def _widener(generate: Callable[[Any, Any, Any, int], None], lanes: int) -> Any:
    def widen(context: Any, source: Any, target: Any) -> Any:
        def body(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            generate(builder, arguments[0], arguments[1], lanes)
            return _.get_dummy_value()

        return types.void(types.uint64, types.uint64), body

    return intrinsic(widen)


def _narrower(generate: Callable[[Any, Any, Any, Any, int], Any], lanes: int) -> Any:
    def narrow(context: Any, source: Any, target: Any, scale: Any) -> Any:
        def body(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return generate(builder, arguments[0], arguments[1], arguments[2], lanes)

        return types.uint32(types.uint64, types.uint64, types.float32), body

    return intrinsic(narrow)


def _widen_half(builder: Any, source: Any, target: Any, lanes: int) -> None:
    value = _load(builder, source, _shape(_HALF, lanes))
    _save(builder, builder.fpext(value, _shape(_FLOAT, lanes)), target)


def _widen_brain(builder: Any, source: Any, target: Any, lanes: int) -> None:
    bits = builder.zext(_load(builder, source, _shape(_I16, lanes)), _shape(_I32, lanes))
    _save(builder, builder.shl(bits, _all(_I32, lanes, 16)), target)


def _widen_single(builder: Any, source: Any, target: Any, lanes: int) -> None:
    _save(builder, _load(builder, source, _shape(_I32, lanes)), target)


def _narrow_half(builder: Any, source: Any, target: Any, scale: Any, lanes: int) -> Any:
    value = builder.fptrunc(_scaled(builder, source, scale, lanes), _shape(_HALF, lanes))
    _save(builder, value, target)
    return _any(
        builder,
        _full(builder, builder.bitcast(value, _shape(_I16, lanes)), _I16, lanes, _EXPONENT16),
        lanes,
    )


def _narrow_brain(builder: Any, source: Any, target: Any, scale: Any, lanes: int) -> Any:
    bits = builder.bitcast(_scaled(builder, source, scale, lanes), _shape(_I32, lanes))
    sixteen, one = _all(_I32, lanes, 16), _all(_I32, lanes, 1)
    odd = builder.and_(builder.lshr(bits, sixteen), one)
    rounded = builder.add(builder.add(bits, _all(_I32, lanes, 0x7FFF)), odd)
    _save(builder, builder.trunc(builder.lshr(rounded, sixteen), _shape(_I16, lanes)), target)
    # the input too: rounding may carry a NaN's bits over into something that looks finite
    flags = builder.or_(
        _full(builder, bits, _I32, lanes, _EXPONENT32), _full(builder, rounded, _I32, lanes, _EXPONENT32)
    )
    return _any(builder, flags, lanes)


def _narrow_single(builder: Any, source: Any, target: Any, scale: Any, lanes: int) -> Any:
    value = _scaled(builder, source, scale, lanes)
    _save(builder, value, target)
    bits = builder.bitcast(value, _shape(_I32, lanes))
    return _any(builder, _full(builder, bits, _I32, lanes, _EXPONENT32), lanes)


Widen = Callable[[np.uint64, np.uint64], None]
Narrow = Callable[[np.uint64, np.uint64, np.float32], np.uint32]
widen_half: Widen = _widener(_widen_half, LANES)
"""widen_half(source, target): 16 float16 -> 16 float32; `_1`: one number, here and below."""
widen_half_1: Widen = _widener(_widen_half, 1)
widen_brain: Widen = _widener(_widen_brain, LANES)
"""widen_brain(source, target): 16 bfloat16 -> 16 float32."""
widen_brain_1: Widen = _widener(_widen_brain, 1)
widen_single: Widen = _widener(_widen_single, LANES)
"""widen_single(source, target): copy 16 float32."""
widen_single_1: Widen = _widener(_widen_single, 1)
narrow_half: Narrow = _narrower(_narrow_half, LANES)
"""narrow_half(source, target, scale): 16 float32 * scale -> float16; 1 if a result is not finite."""
narrow_half_1: Narrow = _narrower(_narrow_half, 1)
narrow_brain: Narrow = _narrower(_narrow_brain, LANES)
"""narrow_brain(source, target, scale): 16 float32 * scale -> bfloat16; 1 if a result is not finite."""
narrow_brain_1: Narrow = _narrower(_narrow_brain, 1)
narrow_single: Narrow = _narrower(_narrow_single, LANES)
"""narrow_single(source, target, scale): 16 float32 * scale -> float32; 1 if a result is not finite."""
narrow_single_1: Narrow = _narrower(_narrow_single, 1)
