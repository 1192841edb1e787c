"""Format, optimizer state and initial values of a table group's rows, and the kernel call of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError
from satrap.optim import FTRL, SGD, Adagrad, Adam, AdamW, Optimizer, RowWiseAdagrad
from satrap.schema import Table
from satrap.store import hashes
from satrap.store.arrays import Floats, Ids, Inverse, Offsets, address
from satrap.store.kernels import optimizers as kernels
from satrap.store.kernels import rows as row_kernels
from satrap.store.kernels.formats import FORMATS, LARGEST, Float32, Format, padded_bytes
from satrap.store.kernels.rows import Initial, SlabRows

NO_NOISE = np.uint64(0)
"""Rounding seed for weights that are not rounded."""


Step = Callable[[SlabRows, Ids, Inverse, np.uint64, float, np.uint64], None]
Rule = Callable[[float], NamedTuple]


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The state of an optimizer: `state` float32 that follow the weights in the row.

    With `scalar`, the row has one more float32 (an accumulator or a step count), stored separately.
    `state_start` and `scalar_start` are the values in a new row.
    """

    state: int
    scalar: bool = False
    state_start: float = 0.0
    scalar_start: float = 0.0


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """How an optimizer lays out and steps rows of `dim` weights.

    Args:
        format: number format of the weights in memory.
        weights: bytes of the weights, padded to a multiple of 4.
        layout: the state.
        step: `step(rows, ids uint64[n], slots int32[n], address of gradients, lr_scale, noise)`; `noise`
            and the ids decide how 16-bit weights are rounded.
        numbers: `numbers(lr_scale)`, the numbers of the optimizer's kernel.
        shaping, bound: weight decay and clipping, and the bound of weights; None: not needed.
    """

    format: type[Format]
    weights: int
    layout: RowLayout
    step: Step
    numbers: Rule
    shaping: kernels.Shaping | None
    bound: tuple[np.float32] | None

    @property
    def width(self) -> int:
        """Number of float32 of state per row: the columns of an exported chunk's `state`."""
        return self.layout.state + self.layout.scalar

    @property
    def stride(self) -> int:
        """Bytes from one row to the next: weights and the state that follows them."""
        return self.weights + 4 * self.layout.state

    @property
    def row_bytes(self) -> int:
        """Bytes of a row: weights and all state."""
        return self.weights + 4 * self.width

    def initial_states(self, rows: int) -> Floats:
        """Return the state of new rows, float32[rows, width]."""
        layout = self.layout
        state = [layout.state_start] * layout.state + [layout.scalar_start] * layout.scalar
        return np.tile(np.array(state, np.float32), (rows, 1))


def plan(optimizer: Optimizer, dim: int, dtype: str = "float32") -> UpdateRule:
    """Return an optimizer's plan for rows of `dim` weights; raise `ConfigError` if it is unsupported."""
    fmt = FORMATS[dtype]
    layout, rule = _layout(optimizer, dim), _rule(optimizer)
    shaping, bound = _shaping(optimizer), _bound(optimizer, fmt)

    def numbers(lr_scale: float) -> NamedTuple:
        return rule(optimizer.lr * lr_scale)

    def step(
        rows: SlabRows, ids: Ids, slots: Inverse, gradients: np.uint64, lr_scale: float, noise: np.uint64
    ) -> None:
        now = numbers(lr_scale)
        kernels.step(dim)(fmt(noise), now, shaping, bound, rows, ids, slots, gradients)

    return UpdateRule(fmt, padded_bytes(fmt, dim), layout, step, numbers, shaping, bound)


class RowSpec:
    """Layout and initial values of one table group's rows; its tables have equal dim, dtype and optimizer.

    Attributes:
        tables: names of the tables.
        dim: weights per row.
        plan: how a row is laid out in memory.
        initial: parameters of the initial rows.
        noise: seed of the rounding of 16-bit weights.

    Raises:
        ConfigError: the store cannot execute the optimizer.
    """

    def __init__(self, tables: Sequence[Table], optimizer: Optimizer, seed: int) -> None:
        self.tables, self.dim = tuple(table.name for table in tables), tables[0].dim
        self.plan = plan(optimizer, self.dim, tables[0].dtype)
        self.initial = Initial(
            np.array([hashes.row_seed(seed, name) for name in self.tables], np.uint64),
            np.array([table.initial_scale for table in tables], np.float32),
            np.float32(self.plan.layout.state_start),
            np.float32(self.plan.layout.scalar_start),
        )
        self.noise = hashes.row_seed(seed, "")

    def initial_rows(self, ids: Ids, splits: Offsets, positions: Offsets, out: Floats) -> None:
        """Write the initial rows of ids at some positions to these positions of `out`, float32[n, dim]."""
        if len(positions):
            fmt, dim = self.plan.format(NO_NOISE), np.uint64(self.dim)
            start, step = address(out), np.uint64(out.strides[0])
            row_kernels.initial_rows(fmt, self.initial, ids, splits, positions, dim, start, step)


def _shaping(o: Optimizer) -> kernels.Shaping | None:
    """Return the weight decay and gradient clipping, None if neither is set."""
    decay = 0.0 if isinstance(o, AdamW) else getattr(o, "weight_decay", 0.0)
    if not decay and o.clip is None:
        return None
    return kernels.Shaping(np.float32(decay), np.float32(math.inf if o.clip is None else o.clip))


def _bound(o: Optimizer, fmt: type[Format]) -> tuple[np.float32] | None:
    """Return the bound of weights, or None; 16-bit weights always have a bound."""
    if fmt is Float32 and o.bound is None:
        return None
    return (np.float32(min(LARGEST[fmt], o.bound or math.inf)),)


def _layout(optimizer: Optimizer, dim: int) -> RowLayout:
    match optimizer:
        case SGD():
            return RowLayout(dim if optimizer.momentum else 0)
        case Adagrad():
            return RowLayout(dim, state_start=optimizer.initial_accumulator)
        case RowWiseAdagrad():
            return RowLayout(0, scalar=True, scalar_start=optimizer.initial_accumulator)
        case Adam() | AdamW():
            return RowLayout(2 * dim, scalar=True)
        case FTRL():
            return RowLayout(2 * dim)
    raise ConfigError(
        f"the store does not support optimizer {type(optimizer).__name__}",
        fix="use one of satrap.optim: SGD, Adagrad, RowWiseAdagrad, Adam, AdamW, FTRL",
    )


def _rule(o: Optimizer) -> Rule:
    """Return the function that turns a learning rate into the kernel's numbers."""
    f = np.float32
    match o:
        case SGD() if o.momentum:
            of_gradient, of_sum = (1.0, o.momentum) if o.nesterov else (0.0, 1.0)
            return lambda lr: kernels.MomentumKernel(f(lr), f(o.momentum), f(of_gradient), f(of_sum))
        case Adagrad():
            return lambda lr: kernels.AdagradKernel(f(lr), f(o.eps))
        case RowWiseAdagrad():
            return lambda lr: kernels.RowWiseAdagradKernel(f(lr), f(o.eps))
        case Adam() | AdamW():
            return _adam(o)
        case FTRL():
            return lambda lr: kernels.FTRLKernel(f(lr), f(o.beta), f(o.l1), f(o.l2))
    return lambda lr: kernels.SGDKernel(f(lr))


def _adam(o: Adam | AdamW) -> Rule:
    b1, b2 = (np.float64(b) for b in o.betas)
    decay = o.weight_decay if isinstance(o, AdamW) else 0.0
    table = _corrections(*o.betas)

    def rule(lr: float) -> NamedTuple:
        eps, shrink = np.float32(o.eps), np.float32(1 - lr * decay)
        return kernels.AdamKernel(np.float64(lr), b1, b2, eps, shrink, address(table))

    return rule


@cache
def _corrections(beta1: float, beta2: float) -> npt.NDArray[np.float64]:
    """Return float64[steps, 2]: the divisors of the moments at each step, shared by all tables."""
    return np.array([(1 - beta1**t, math.sqrt(1 - beta2**t)) for t in range(kernels.TABULATED)])
