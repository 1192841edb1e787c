"""One optimizer step per row, as in `satrap.store.kernels.optimizers`; see `satrap.optim` for the formulas.

Every operation rounds as on the CPU: divisions and square roots to nearest, no multiplication is fused with
an addition (kernels are launched with `enable_fp_fusion=False`), and numbers that the CPU computes in float64
come from the host or are computed in float64. Sums over a row add halves pairwise: for 16 and 32 weights this
is the CPU's order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from satrap.store.gpu.kernels.formats import narrowed, widened
from satrap.store.gpu.kernels.hashing import mix

SGD = tl.constexpr(0)
MOMENTUM = tl.constexpr(1)
ADAGRAD = tl.constexpr(2)
ROWWISE = tl.constexpr(3)
ADAM = tl.constexpr(4)
FTRL = tl.constexpr(5)

# places in `Numbers.floats`, after the numbers of the optimizer; `satrap.store.gpu.numbers` writes them
DECAY = tl.constexpr(8)
CLIP = tl.constexpr(9)
BOUND = tl.constexpr(10)


@triton.jit
def divided(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """Return x / y, rounded to nearest; y is broadcast."""
    return tl.div_rn(x, tl.broadcast_to(y, x.shape))


@triton.jit
def clamped(x: tl.tensor, bound: tl.tensor) -> tl.tensor:
    """Return x in [-bound, bound], else the nearer end; NaN gives `bound`."""
    x = tl.where(x < bound, x, bound)
    return tl.where(x > -bound, x, -bound)


@triton.jit
def row_total(x: tl.tensor) -> tl.tensor:
    """Return the sums [R, 1] of the rows of x [R, a power of two]: halves are added until one column is left.

    Additions of two numbers have one result, so no layout of threads changes it.
    """
    for _ in tl.static_range(12):
        if x.shape[1] > 1:
            x = tl.sum(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), axis=1)
    return x


@triton.jit
def clipping(g: tl.tensor, clip: tl.tensor) -> tl.tensor:
    """Return the factor [R, 1], at most 1, that makes the norm of each row's gradient at most `clip`."""
    squares = row_total(g * g).to(tl.float64)
    inside = (squares > 1e-30) & (squares < 1e38)
    if tl.min(inside.to(tl.int32)) == 0:  # the squares overflow float32
        exact = g.to(tl.float64)
        squares = tl.where(inside, squares, row_total(exact * exact))
    limit = clip.to(tl.float64)
    factor = (limit / tl.sqrt(tl.where(squares == 0.0, 1.0, squares))).to(tl.float32)
    return tl.where(squares <= limit * limit, 1.0, factor)


@triton.jit
def step_rows(
    memory: tl.tuple,
    numbers: tl.tuple,
    slot: tl.tensor,
    id: tl.tensor,
    g: tl.tensor,
    SHAPE: tl.constexpr,
    RULE: tl.constexpr,
) -> None:
    """Take one step of the rows of `slot` [R, 1] (-1: none) with the gradients [R, columns].

    Slots are different, so two programs, and two rows of a tile, have no address in common. Within a program,
    several warps may hold copies of a number: of [R, 1] always, of a tile that is smaller than the number of
    threads. A warp could then store before another has loaded its copy, and the other would step a row that
    was already stepped. So all loads come first, then a barrier, then all stores; copies store equal values.
    """
    c = tl.arange(0, SHAPE.columns)[None, :]
    inside = (slot >= 0) & (c < SHAPE.dim)
    w = memory.weights + slot.to(tl.int64) * SHAPE.weights + c
    s = memory.state + slot.to(tl.int64) * SHAPE.state + c
    x = widened(tl.load(w, mask=inside, other=0), SHAPE.format)
    first = tl.load(s, mask=inside, other=0.0) if SHAPE.vectors > 0 else g
    second = tl.load(s + SHAPE.vector, mask=inside, other=0.0) if SHAPE.vectors > 1 else g
    scalar = tl.load(memory.scalars + slot, mask=slot >= 0, other=0.0) if SHAPE.scalar else g
    if RULE.shaped:
        g = shaped(x, g, numbers, RULE)
    x, first, second, scalar = stepped(x, g, first, second, scalar, numbers, SHAPE, RULE)
    if RULE.bounded:
        x = clamped(x, tl.load(numbers.floats + BOUND))
    key = mix((id ^ tl.load(numbers.noise)).to(tl.uint64, bitcast=True))
    x = narrowed(x, key, c, SHAPE.format)
    tl.debug_barrier()
    tl.store(w, x, mask=inside)
    if SHAPE.vectors > 0:
        tl.store(s, first, mask=inside)
    if SHAPE.vectors > 1:
        tl.store(s + SHAPE.vector, second, mask=inside)
    if SHAPE.scalar:
        tl.store(memory.scalars + slot, scalar, mask=slot >= 0)


@triton.jit
def shaped(x: tl.tensor, g: tl.tensor, numbers: tl.tuple, RULE: tl.constexpr) -> tl.tensor:
    """Return gradients after clipping and weight decay."""
    decay = tl.load(numbers.floats + DECAY)
    if RULE.clipped:
        g = g * clipping(g, tl.load(numbers.floats + CLIP))
    return g + decay * x


@triton.jit
def stepped(
    x: tl.tensor,
    g: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    scalar: tl.tensor,
    numbers: tl.tuple,
    SHAPE: tl.constexpr,
    RULE: tl.constexpr,
) -> tl.tensor:
    """Return weights, state vectors and scalar after a step; state that rows do not have is any number."""
    f = numbers.floats
    lr = tl.load(f)
    if RULE.kind == SGD:
        x = x - lr * g
    elif RULE.kind == MOMENTUM:
        first = tl.load(f + 1) * first + g
        x = x - lr * (tl.load(f + 2) * g + tl.load(f + 3) * first)
    elif RULE.kind == ADAGRAD:
        first = first + g * g
        x = x - lr * divided(g, tl.sqrt_rn(first) + tl.load(f + 1))
    elif RULE.kind == ROWWISE:
        scalar = scalar + tl.div_rn(row_total(g * g), tl.full(scalar.shape, SHAPE.dim, tl.float32))
        x = x - tl.div_rn(lr + tl.zeros_like(scalar), tl.sqrt_rn(scalar) + tl.load(f + 1)) * g
    elif RULE.kind == ADAM:
        scalar = scalar + 1.0
        t = 2 * tl.minimum(scalar.to(tl.int32), numbers.last)
        rate = (tl.load(numbers.rate) / tl.load(numbers.corrections + t)).to(tl.float32)
        correction = tl.load(numbers.corrections + t + 1).to(tl.float32)
        first = tl.load(f + 2) * first + tl.load(f + 3) * g
        second = tl.load(f + 4) * second + tl.load(f + 5) * g * g
        below = divided(tl.sqrt_rn(second), correction) + tl.load(f + 1)
        x = tl.load(f + 6) * x - rate * tl.div_rn(first, below)
    else:
        x, first, second = ftrl(x, g, first, second, f)
    return x, first, second, scalar


@triton.jit
def ftrl(x: tl.tensor, g: tl.tensor, z: tl.tensor, n: tl.tensor, f: tl.tensor) -> tl.tensor:
    """Return weights, z and n after a step of FTRL-proximal."""
    alpha, beta, l1 = tl.load(f), tl.load(f + 1), tl.load(f + 2)
    still = tl.div_rn(beta, alpha) + tl.load(f + 3)
    # before the first gradient, z makes w the minimum: -w * (beta / alpha + l2) - sign(w) * l1
    fresh = 0.0 - x * still - clamped(x * 1e38, l1)
    z = tl.where(n == 0.0, fresh, z)
    grown = clamped(n + g * g, tl.full([], 3.4028235e38, tl.float32))
    root = tl.sqrt_rn(grown)
    z = z + g - divided(root - tl.sqrt_rn(n), alpha) * x
    below = divided(beta + root, alpha) + tl.load(f + 3)
    return tl.where(grown == 0.0, x, tl.div_rn(clamped(z, l1) - z, below)), z, grown
