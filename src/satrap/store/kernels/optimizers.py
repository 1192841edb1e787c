"""One optimizer step per row, in one pass over `[weights | state]`; see `satrap.optim` for the formulas.

One loop (`step`) serves every optimizer and format: the type of `rule` chooses `begin`, which computes values
once per row, and `lane`, which updates a weight. A lane is a float32 or a vector of 16; rows run in vectors
with a scalar tail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from satrap.store.arrays import Ids, Inverse
from satrap.store.kernels.formats import Format, load_weights, store_weights, weight_bytes
from satrap.store.kernels.hashing import mix
from satrap.store.kernels.jit import by_width, helper, kernel
from satrap.store.kernels.rows import SlabRows, ahead, fetch_write
from satrap.store.kernels.simd import (
    broadcast,
    clamp,
    load_double,
    load_like,
    prefetch_write,
    root,
    spread,
    store,
    total,
    where_zero,
)

_FOUR = np.uint64(4)
_ZERO = np.uint64(0)
_LANES = np.uint64(16)
_NONE = np.float32(0)
_UNIT = np.float32(1)
_LARGEST = np.float32(3.4028235e38)
TABULATED = 4096
"""Steps of a row whose bias corrections come from a table (computing two powers takes 40 ns)."""


class Shaping(NamedTuple):
    """Weight decay and clipping of the gradient before any optimizer's step.

    Attributes:
        decay: `decay * w` is added to the gradient.
        clip: largest norm of the gradient before decay is added; infinity: no limit.
    """

    decay: np.float32
    clip: np.float32


class SGDKernel(NamedTuple):
    """`w -= lr * g`."""

    lr: np.float32


class MomentumKernel(NamedTuple):
    """`b = factor * b + g; w -= lr * (own * g + kept * b)`; the state is b."""

    lr: np.float32
    factor: np.float32
    own: np.float32
    kept: np.float32


class AdagradKernel(NamedTuple):
    """`a += g * g; w -= lr * (g / (sqrt(a) + eps))`; the state is a."""

    lr: np.float32
    eps: np.float32


class RowWiseAdagradKernel(NamedTuple):
    """`a += mean(g * g); w -= lr / (sqrt(a) + eps) * g`; a is the row's scalar."""

    lr: np.float32
    eps: np.float32


class AdamKernel(NamedTuple):
    """Adam on `shrink * w`; the state is [m | v], the row's scalar counts its steps.

    `corrections` is the address of float64 pairs (1 - b1^t, sqrt(1 - b2^t)) for t = 0 .. TABULATED - 1.
    """

    lr: np.float64
    b1: np.float64
    b2: np.float64
    eps: np.float32
    shrink: np.float32
    corrections: np.uint64


class FTRLKernel(NamedTuple):
    """FTRL-proximal; the state is [z | n]."""

    alpha: np.float32
    beta: np.float32
    l1: np.float32
    l2: np.float32


_COMPILED = (
    "only kernels call this: the type of the rule selects the compiled code, see the end of the module"
)


def begin(
    fmt: Any, rule: Any, decay: Any, scale: Any, scalar: Any, w: Any, g: Any, dim: Any
) -> tuple[np.float32, ...]:
    """Return the arguments of `lane` that are equal for all weights of a row; may step the row's scalar."""
    raise TypeError(_COMPILED)


def lane(rule: Any, facts: Any, x: Any, g: Any, state: Any, size: Any) -> Any:
    """Return the new weight; `state` is the address of its state, the next state is `size` bytes further."""
    raise TypeError(_COMPILED)


def _begin_descent(fmt: Any, rule: Any, decay: Any, scale: Any, scalar: Any, w: Any, g: Any, dim: Any) -> Any:
    return (rule.lr,)


def _lane_descent(rule: Any, facts: Any, x: Any, g: Any, state: Any, size: Any) -> Any:
    return x - facts[0] * g


def _begin_momentum(
    fmt: Any, rule: Any, decay: Any, scale: Any, scalar: Any, w: Any, g: Any, dim: Any
) -> Any:
    return (rule.lr, rule.factor, rule.own, rule.kept)


def _lane_momentum(rule: Any, facts: Any, x: Any, g: Any, state: Any, size: Any) -> Any:
    lr, factor, own, kept = facts
    buffer = factor * load_like(x, state) + g
    store(state, buffer)
    return x - lr * (own * g + kept * buffer)


def _begin_adagrad(fmt: Any, rule: Any, decay: Any, scale: Any, scalar: Any, w: Any, g: Any, dim: Any) -> Any:
    return (rule.lr, rule.eps)


def _lane_adagrad(rule: Any, facts: Any, x: Any, g: Any, state: Any, size: Any) -> Any:
    lr, eps = facts
    accumulator = load_like(x, state) + g * g
    store(state, accumulator)
    return x - lr * (g / (root(accumulator) + eps))


def _begin_rowwise(fmt: Any, rule: Any, decay: Any, scale: Any, scalar: Any, w: Any, g: Any, dim: Any) -> Any:
    squares = sum_of_squares(fmt, w, decay, g, scale, dim)
    a = np.float32(load_like(_NONE, scalar) + squares / np.float32(dim))
    store(scalar, a)
    return (np.float32(rule.lr / np.float32(root(a) + rule.eps)),)


def _begin_adam(fmt: Any, rule: Any, decay: Any, scale: Any, scalar: Any, w: Any, g: Any, dim: Any) -> Any:
    one = np.float64(1)
    t = np.float32(load_like(_NONE, scalar) + _UNIT)
    store(scalar, t)
    if t < TABULATED:
        pair = rule.corrections + np.uint64(16) * np.uint64(t)
        first, second = load_double(pair), load_double(pair + np.uint64(8))
    else:
        first, second = one - rule.b1 ** np.float64(t), np.sqrt(one - rule.b2 ** np.float64(t))
    return (
        np.float32(rule.lr / first),
        np.float32(second),
        np.float32(rule.b1),
        np.float32(one - rule.b1),
        np.float32(rule.b2),
        np.float32(one - rule.b2),
        rule.eps,
        rule.shrink,
    )


def _lane_adam(rule: Any, facts: Any, x: Any, g: Any, state: Any, size: Any) -> Any:
    rate, correction, b1, a1, b2, a2, eps, shrink = facts
    mean = b1 * load_like(x, state) + a1 * g
    square = b2 * load_like(x, state + size) + a2 * g * g
    store(state, mean)
    store(state + size, square)
    return shrink * x - rate * (mean / (root(square) / correction + eps))


def _begin_ftrl(fmt: Any, rule: Any, decay: Any, scale: Any, scalar: Any, w: Any, g: Any, dim: Any) -> Any:
    return (rule.alpha, rule.beta, rule.l1, rule.l2, _NONE, np.float32(1e38), _LARGEST)


def _lane_ftrl(rule: Any, facts: Any, x: Any, g: Any, state: Any, size: Any) -> Any:
    alpha, beta, l1, l2, zero, steep, largest = facts
    before = load_like(x, state + size)
    # before the first gradient, z makes w the minimum: -w * (beta / alpha + l2) - sign(w) * l1
    fresh = zero - x * (beta / alpha + l2) - clamp(x * steep, l1)
    z = where_zero(before, fresh, load_like(x, state))
    n = clamp(before + g * g, largest)
    grown = root(n)
    z = z + g - (grown - root(before)) / alpha * x
    store(state, z)
    store(state + size, n)
    return where_zero(n, x, (clamp(z, l1) - z) / ((beta + grown) / alpha + l2))


_RULES: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {
    SGDKernel: (_begin_descent, _lane_descent),
    MomentumKernel: (_begin_momentum, _lane_momentum),
    AdagradKernel: (_begin_adagrad, _lane_adagrad),
    RowWiseAdagradKernel: (_begin_rowwise, _lane_descent),
    AdamKernel: (_begin_adam, _lane_adam),
    FTRLKernel: (_begin_ftrl, _lane_ftrl),
}


def _choose_begin(
    fmt: Any, rule: Any, decay: Any, scale: Any, scalar: Any, w: Any, g: Any, dim: Any
) -> Callable[..., Any]:
    return _RULES[rule.instance_class][0]


def _choose_lane(rule: Any, facts: Any, x: Any, g: Any, state: Any, size: Any) -> Callable[..., Any]:
    return _RULES[rule.instance_class][1]


overload(begin)(_choose_begin)
overload(lane)(_choose_lane)


@helper
def sum_of_squares(
    fmt: Format, w: np.uint64, decay: np.float32, g: np.uint64, scale: np.float32, dim: np.uint64
) -> np.float32:
    """Return the sum of `(scale * g + decay * w) ** 2` over a row."""
    full, item = dim & ~np.uint64(15), weight_bytes(fmt)
    scales, decays = broadcast(scale), broadcast(decay)
    sums = broadcast(_NONE)
    for k in range(_ZERO, full, _LANES):
        x = load_like(sums, g + k * _FOUR) * scales
        if decay != _NONE:
            x = x + decays * load_weights(fmt, sums, w + k * item)
        sums = sums + x * x
    result = total(sums)
    for k in range(full, dim):
        y = load_like(_NONE, g + k * _FOUR) * scale
        if decay != _NONE:  # without decay, w may not be weights
            y += decay * load_weights(fmt, _NONE, w + k * item)
        result += y * y
    return np.float32(result)


@helper
def clipping(fmt: Format, g: np.uint64, dim: np.uint64, clip: np.float32) -> np.float32:
    """Return the factor, at most 1, that makes the norm of a gradient at most `clip`."""
    if clip > _LARGEST:
        return _UNIT
    squares = np.float64(sum_of_squares(fmt, g, _NONE, g, _UNIT, dim))
    if not (1e-30 < squares < 1e38):  # the squares overflow float32
        squares = np.float64(0)
        for k in range(dim):
            x = np.float64(load_like(_NONE, g + np.uint64(k) * _FOUR))
            squares += x * x
    if squares <= np.float64(clip) * np.float64(clip):
        return _UNIT
    return np.float32(clip / np.sqrt(squares))


class Row(NamedTuple):
    """A row to step: addresses of weights, state and gradient, bytes of the gradient, rounding key."""

    weights: np.uint64
    state: np.uint64
    gradient: np.uint64
    size: np.uint64
    key: np.uint64


@helper
def step_lane(
    fmt: Format,
    rule: Any,
    shaping: Shaping | None,
    facts: Any,
    shape: Any,
    bound: Any,
    row: Row,
    k: np.uint64,
) -> None:
    """Step the weight, or the 16 weights, of column k; `shape` is (decay, scale of the gradient)."""
    place, state = row.weights + k * weight_bytes(fmt), row.state + k * _FOUR
    x, gradient = load_weights(fmt, facts[0], place), load_like(facts[0], row.gradient + k * _FOUR)
    if shaping is not None:
        gradient = gradient * shape[1] + shape[0] * x
    x = lane(rule, facts, x, gradient, state, row.size)
    if bound is not None:
        x = clamp(x, bound[0])
    store_weights(fmt, place, x, row.key, k)


@by_width
def step(width: int) -> Any:
    """Take one step per slot; slots are unique; the gradient of slot -1 is ignored.

    `gradients` is the address of float32[n, dim]. Weights are clamped to [-bound[0], bound[0]]. `shaping` and
    `bound` are None if not needed: machine code without them is faster.
    """

    @kernel
    def step_rows(
        fmt: Format,
        rule: Any,
        shaping: Shaping | None,
        bound: tuple[np.float32] | None,
        rows: SlabRows,
        ids: Ids,
        slots: Inverse,
        gradients: np.uint64,
    ) -> None:
        d = np.uint64(width) if width else rows.dim
        base, stride, scalars = rows.base, rows.stride, rows.scalars
        n, size, full = np.uint64(slots.shape[0]), d * _FOUR, d & ~np.uint64(15)
        weights = (d * weight_bytes(fmt) + np.uint64(3)) & ~np.uint64(3)
        distance = np.uint64(ahead(stride))
        for i in range(n):  # unsigned: Numba adds no test for indices from the end
            if i + distance < n and slots[i + distance] >= 0:
                later = base + np.uint64(slots[i + distance]) * stride
                fetch_write(later, weights)
                fetch_write(later + weights, stride - weights)
                if scalars != _ZERO:
                    prefetch_write(scalars + np.uint64(slots[i + distance]) * _FOUR)
            if slots[i] < 0:
                continue
            slot, g = np.uint64(slots[i]), gradients + i * size
            w = base + slot * stride
            scalar = scalars + slot * _FOUR  # unused if the row has no scalar: such rules do not read it
            one = (_NONE, _UNIT) if shaping is None else (shaping.decay, clipping(fmt, g, d, shaping.clip))
            facts = begin(fmt, rule, one[0], one[1], scalar, w, g, d)
            row = Row(w, w + weights, g, size, mix(ids[i] ^ fmt.noise))
            many, all_facts, bounds = spread(one), spread(facts), spread(bound)
            for k in range(_ZERO, full, _LANES):
                step_lane(fmt, rule, shaping, all_facts, many, bounds, row, np.uint64(k))
            for k in range(full, d):
                step_lane(fmt, rule, shaping, facts, one, bound, row, np.uint64(k))

    return step_rows
