"""What each optimizer needs of a row, and the call of its kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from satrap.errors import ConfigError
from satrap.optim import SGD, Adagrad, Adam, Optimizer, RowWiseAdagrad
from satrap.store.kernels import optimizers as kernels
from satrap.store.types import Floats, Inverse


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of a group lie: the arguments every optimizer kernel starts with.

    Row `slot` starts at byte `base + slot * stride`; `scalars` is float32[slots], or empty.
    """

    base: np.uint64
    stride: np.uint64
    dim: np.uint64
    scalars: Floats


Step = Callable[[Rows, Inverse, np.uint64, float], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How an optimizer lays out and steps rows of `dim` weights.

    Args:
        state: float32 of state that follow the weights in the row.
        scalar: True if the row has one more float32 (an accumulator or a step), kept apart.
        state_start, scalar_start: what they hold in a new row.
        step: `step(rows, slots int32[n], address of gradients, lr_scale)`.
    """

    state: int
    scalar: bool
    state_start: float
    scalar_start: float
    step: Step

    @property
    def width(self) -> int:
        """Number of float32 of state per row: the columns of an exported chunk's `state`."""
        return self.state + self.scalar


def plan(optimizer: Optimizer, dim: int) -> Plan:
    """Return the plan of an optimizer.

    Raises:
        ConfigError: the store cannot execute it.
    """
    match optimizer:
        case SGD():
            return Plan(0, False, 0.0, 0.0, _sgd(optimizer))
        case Adagrad():
            return Plan(dim, False, optimizer.initial_accumulator, 0.0, _adagrad(optimizer))
        case RowWiseAdagrad():
            return Plan(0, True, 0.0, optimizer.initial_accumulator, _rowwise_adagrad(optimizer))
        case Adam():
            return Plan(2 * dim, True, 0.0, 0.0, _adam(optimizer))
    raise ConfigError(
        f"the store has no optimizer {type(optimizer).__name__}",
        fix="use one of satrap.optim: SGD, Adagrad, RowWiseAdagrad, Adam",
    )


def _sgd(o: SGD) -> Step:
    def step(rows: Rows, slots: Inverse, gradients: np.uint64, lr_scale: float) -> None:
        kernels.sgd(rows.base, rows.stride, slots, gradients, rows.dim, np.float32(o.lr * lr_scale))

    return step


def _adagrad(o: Adagrad) -> Step:
    def step(rows: Rows, slots: Inverse, gradients: np.uint64, lr_scale: float) -> None:
        rate = np.float32(o.lr * lr_scale)
        kernels.adagrad(rows.base, rows.stride, slots, gradients, rows.dim, rate, np.float32(o.eps))

    return step


def _rowwise_adagrad(o: RowWiseAdagrad) -> Step:
    def step(rows: Rows, slots: Inverse, gradients: np.uint64, lr_scale: float) -> None:
        rate, eps = np.float32(o.lr * lr_scale), np.float32(o.eps)
        kernels.rowwise_adagrad(rows.base, rows.stride, rows.scalars, slots, gradients, rows.dim, rate, eps)

    return step


def _adam(o: Adam) -> Step:
    b1, b2 = (np.float64(b) for b in o.betas)

    def step(rows: Rows, slots: Inverse, gradients: np.uint64, lr_scale: float) -> None:
        rate, eps = np.float32(o.lr * lr_scale), np.float32(o.eps)
        kernels.adam(rows.base, rows.stride, rows.scalars, slots, gradients, rows.dim, rate, b1, b2, eps)

    return step
