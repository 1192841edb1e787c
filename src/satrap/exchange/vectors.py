"""Unaligned memory access and conversions of 16 numbers at once, for Numba kernels.

`half` is float16, `brain` bfloat16, `single` float32. Arrays from a socket lie at any address, so nothing
here assumes alignment. LLVM turns `fpext` and `fptrunc` into the CPU's own conversions (F16C, AVX-512, NEON):
round to nearest, ties to even.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    """Return whether all bits of the exponent, `mask`, are set: infinite or NaN."""
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


def _widener(generate: Callable[..., None], lanes: int) -> Any:
    def widen(context: Any, source: Any, target: Any) -> Any:
        def body(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            generate(builder, *arguments, lanes)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64), body

    return intrinsic(widen)


def _narrower(generate: Callable[..., Any], lanes: int) -> Any:
    def narrow(context: Any, source: Any, target: Any, scale: Any) -> Any:
        def body(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return generate(builder, *arguments, lanes)

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
    bits = builder.bitcast(value, _shape(_I16, lanes))
    return _any(builder, _full(builder, bits, _I16, lanes, _EXPONENT16), lanes)


def _narrow_brain(builder: Any, source: Any, target: Any, scale: Any, lanes: int) -> Any:
    bits = builder.bitcast(_scaled(builder, source, scale, lanes), _shape(_I32, lanes))
    sixteen, one = _all(_I32, lanes, 16), _all(_I32, lanes, 1)
    odd = builder.and_(builder.lshr(bits, sixteen), one)
    rounded = builder.add(builder.add(bits, _all(_I32, lanes, 0x7FFF)), odd)
    _save(builder, builder.trunc(builder.lshr(rounded, sixteen), _shape(_I16, lanes)), target)
    # the input too: rounding may turn a NaN's bits into a number that looks finite
    flags = builder.or_(
        _full(builder, bits, _I32, lanes, _EXPONENT32), _full(builder, rounded, _I32, lanes, _EXPONENT32)
    )
    return _any(builder, flags, lanes)


def _narrow_single(builder: Any, source: Any, target: Any, scale: Any, lanes: int) -> Any:
    value = _scaled(builder, source, scale, lanes)
    _save(builder, value, target)
    bits = builder.bitcast(value, _shape(_I32, lanes))
    return _any(builder, _full(builder, bits, _I32, lanes, _EXPONENT32), lanes)


# widen(source, target): 16 numbers -> 16 float32; `_1`: one number, here and below
widen_half, widen_half_1 = _widener(_widen_half, LANES), _widener(_widen_half, 1)
widen_brain, widen_brain_1 = _widener(_widen_brain, LANES), _widener(_widen_brain, 1)
widen_single, widen_single_1 = _widener(_widen_single, LANES), _widener(_widen_single, 1)
# narrow(source, target, scale): 16 float32 * scale -> 16 numbers; return 1 if one is not finite
narrow_half, narrow_half_1 = _narrower(_narrow_half, LANES), _narrower(_narrow_half, 1)
narrow_brain, narrow_brain_1 = _narrower(_narrow_brain, LANES), _narrower(_narrow_brain, 1)
narrow_single, narrow_single_1 = _narrower(_narrow_single, LANES), _narrower(_narrow_single, 1)
