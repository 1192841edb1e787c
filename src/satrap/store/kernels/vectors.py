"""Unaligned memory access and conversions of 16 numbers at once, for Numba kernels.

`half` is float16, `brain` bfloat16, `single` float32, `byte` int8. Arrays from a socket may have any address,
so no alignment is assumed. LLVM turns `fpext` and `fptrunc` into the CPU's conversion instructions (F16C,
AVX-512, NEON): round to nearest, ties to even.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_cgutils: Any = cgutils
LANES = 16
_EXPONENT32 = 0x7F800000
_EXPONENT16 = 0x7C00
_MAGNITUDE32 = 0x7FFFFFFF
_WHOLE = 1.5 * 2**23
"""Adding this to a small float32 rounds it to a whole number, which the low bits then hold."""
_I8 = ir.IntType(8)
_I16 = ir.IntType(16)
_I32 = ir.IntType(32)
_FLOAT = ir.FloatType()
_HALF = ir.HalfType()


def _shape(scalar: Any, lanes: int) -> Any:
    return scalar if lanes == 1 else ir.VectorType(scalar, lanes)


def _all(scalar: Any, lanes: int, value: float) -> Any:
    return ir.Constant(scalar, value) if lanes == 1 else ir.Constant(_shape(scalar, lanes), [value] * lanes)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _save(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def _any(builder: Any, flags: Any, lanes: int) -> Any:
    bits = flags if lanes == 1 else builder.bitcast(flags, ir.IntType(lanes))
    return builder.zext(builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0)), _I32)


def _full(builder: Any, bits: Any, scalar: Any, lanes: int, mask: int) -> Any:
    """Return whether all bits of the exponent, `mask`, are set: the number is infinite or NaN."""
    masked = builder.and_(bits, _all(scalar, lanes, mask))
    return builder.icmp_unsigned("==", masked, _all(scalar, lanes, mask))


def _each(builder: Any, value: Any, lanes: int) -> Any:
    if lanes == 1:
        return value
    empty = ir.Constant(_shape(value.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, value, _I32(0))
    return builder.shuffle_vector(first, empty, ir.Constant(_shape(_I32, lanes), [0] * lanes))


def _scaled(builder: Any, source: Any, scale: Any, lanes: int) -> Any:
    return builder.fmul(_load(builder, source, _shape(_FLOAT, lanes)), _each(builder, scale, lanes))


def _made(generate: Callable[..., Any], lanes: int, result: Any, *arguments: Any) -> Any:
    def work(context: Any, *_: Any) -> Any:
        def body(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            made = generate(builder, *given, lanes)
            return context.get_dummy_value() if made is None else made

        return result(*arguments), body

    names = ("context", *"abcd"[: len(arguments)])  # Numba reads the number of parameters
    kind = Parameter.POSITIONAL_OR_KEYWORD
    work.__signature__ = Signature([Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return intrinsic(work)


def _widener(generate: Callable[..., None], lanes: int) -> Any:
    return _made(generate, lanes, types.void, types.uint64, types.uint64)


def _narrower(generate: Callable[..., Any], lanes: int) -> Any:
    return _made(generate, lanes, types.uint32, types.uint64, types.uint64, types.float32)


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
    # also check the input: rounding may turn a NaN into a number that looks finite
    flags = builder.or_(
        _full(builder, bits, _I32, lanes, _EXPONENT32), _full(builder, rounded, _I32, lanes, _EXPONENT32)
    )
    return _any(builder, flags, lanes)


def _narrow_single(builder: Any, source: Any, target: Any, scale: Any, lanes: int) -> Any:
    value = _scaled(builder, source, scale, lanes)
    _save(builder, value, target)
    bits = builder.bitcast(value, _shape(_I32, lanes))
    return _any(builder, _full(builder, bits, _I32, lanes, _EXPONENT32), lanes)


def _top(builder: Any, source: Any, scale: Any, lanes: int) -> Any:
    bits = builder.bitcast(_scaled(builder, source, scale, lanes), _shape(_I32, lanes))
    bits = builder.and_(bits, _all(_I32, lanes, _MAGNITUDE32))
    if lanes == 1:
        return bits
    kind = ir.FunctionType(_I32, [bits.type])
    reduce = _cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.umax.v{lanes}i32")
    return builder.call(reduce, [bits])


def _save_step(builder: Any, top: Any, target: Any, lanes: int) -> Any:
    step = builder.fdiv(builder.bitcast(top, _FLOAT), _all(_FLOAT, lanes, 127.0))
    _save(builder, step, target)
    return step


def _load_step(builder: Any, source: Any, lanes: int) -> Any:
    return _load(builder, source, _shape(_FLOAT, lanes))


def _narrow_byte(builder: Any, source: Any, target: Any, scale: Any, step: Any, lanes: int) -> None:
    value = builder.fdiv(_scaled(builder, source, scale, lanes), _each(builder, step, lanes))
    for order, limit in (("<", -127.0), (">", 127.0)):  # a subnormal step is not exact
        end = _all(_FLOAT, lanes, limit)
        value = builder.select(builder.fcmp_ordered(order, value, end), end, value)
    bits = builder.bitcast(builder.fadd(value, _all(_FLOAT, lanes, _WHOLE)), _shape(_I32, lanes))
    _save(builder, builder.trunc(bits, _shape(_I8, lanes)), target)


def _widen_byte(builder: Any, source: Any, target: Any, step: Any, lanes: int) -> None:
    value = builder.sitofp(_load(builder, source, _shape(_I8, lanes)), _shape(_FLOAT, lanes))
    _save(builder, builder.fmul(value, _each(builder, step, lanes)), target)


# widen(source, target): 16 numbers -> 16 float32; `_1`: one number, here and below
widen_half, widen_half_1 = _widener(_widen_half, LANES), _widener(_widen_half, 1)
widen_brain, widen_brain_1 = _widener(_widen_brain, LANES), _widener(_widen_brain, 1)
widen_single, widen_single_1 = _widener(_widen_single, LANES), _widener(_widen_single, 1)
# narrow(source, target, scale): 16 float32 * scale -> 16 numbers; return 1 if one is not finite
narrow_half, narrow_half_1 = _narrower(_narrow_half, LANES), _narrower(_narrow_half, 1)
narrow_brain, narrow_brain_1 = _narrower(_narrow_brain, LANES), _narrower(_narrow_brain, 1)
narrow_single, narrow_single_1 = _narrower(_narrow_single, LANES), _narrower(_narrow_single, 1)

# int8: number i of a row is step * byte i; the step is its largest magnitude / 127
# top(source, scale): bits of the largest magnitude of 16 float32 * scale
_TOP = types.uint32, types.uint64, types.float32
top, top_1 = _made(_top, LANES, *_TOP), _made(_top, 1, *_TOP)
# save_step(top, target): write and return the step; load_step(source): return it
save_step = _made(_save_step, 1, types.float32, types.uint32, types.uint64)
load_step = _made(_load_step, 1, types.float32, types.uint64)
# narrow_byte(source, target, scale, step): 16 float32 * scale -> 16 bytes
_NARROW = types.void, types.uint64, types.uint64, types.float32, types.float32
narrow_byte, narrow_byte_1 = _made(_narrow_byte, LANES, *_NARROW), _made(_narrow_byte, 1, *_NARROW)
# widen_byte(source, target, step): 16 bytes -> 16 float32
_WIDEN = types.void, types.uint64, types.uint64, types.float32
widen_byte, widen_byte_1 = _made(_widen_byte, LANES, *_WIDEN), _made(_widen_byte, 1, *_WIDEN)
