"""The network's number format, and the loss scale that float16 needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from satrap.errors import ConfigError
from satrap.pairs import Pairs

Output = TypeVar("Output", Tensor, Tensor | Pairs)
"""Type of a network's output."""

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Name in recipes -> number format of the factors of a product."""

FIRST_SCALE, GROWTH_INTERVAL = 65536.0, 2000
"""The defaults of `torch.amp.GradScaler`."""


def check_precision(precision: str) -> None:
    """Raise `ConfigError` if a precision is unknown."""
    if precision not in PRECISIONS:
        raise ConfigError(f"precision {precision!r} is unknown", fix=f"use one of {', '.join(PRECISIONS)}")


def computed(forward: Callable[[], Output], precision: str, device: torch.device) -> Output:
    """Return the result of a network's forward pass, as float32 in every precision.

    With "bfloat16" (8 significant bits, the range of float32) or "float16" (11 bits, from 6e-8 to 65504),
    `torch.autocast` rounds the factors of matrix products, here and in the backward pass. Weights and their
    gradients stay float32.

    Args:
        forward: the forward pass, without the loss; returns a tensor, or vectors as `Pairs`.
        precision: one of `PRECISIONS`.
        device: device of the network.
    """
    with autocast(precision, device):
        result = forward()
    return result if precision == "float32" else result.float()


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which products are computed in a precision, see `computed`."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=PRECISIONS[precision])


def shared_casts(device: torch.device) -> AbstractContextManager[object]:
    """Return a context around several `autocast` contexts: they share one rounded copy of each weight.

    PyTorch keeps these copies until the outermost context ends. Code outside the inner contexts, such as the
    backward passes, computes as usual.
    """
    return torch.autocast(device.type, enabled=False)


class LossScale:
    """The factor on the loss that keeps small gradients within the range of float16; 1 otherwise.

    Gradients of weights and rows are divided by it after the backward pass. This does not round, because the
    factor is a power of two. It changes as in `torch.amp.GradScaler`: a rejected step halves it, and 2000
    accepted steps in a row double it; but it does not fall below 1. A step that is rejected at 1 would most
    likely be rejected in float32 as well.

    Args:
        precision: one of `PRECISIONS`.

    Attributes:
        value: the factor, a power of two from 1 to 2^127.
        accepted: steps accepted since it last changed.
    """

    def __init__(self, precision: str) -> None:
        self._adapts = precision == "float16"
        self.value, self.accepted = FIRST_SCALE if self._adapts else 1.0, 0

    def divide(self, gradients: list[Tensor]) -> None:
        """Divide gradients by the factor, in place."""
        if self.value != 1:
            torch._foreach_mul_(gradients, 1 / self.value)

    def update(self, accepted: bool) -> bool:
        """Count a step; return whether the factor was reduced, because the step was rejected."""
        if not self._adapts:
            return False
        before = self.value
        self.accepted = self.accepted + 1 if accepted else 0
        if not accepted:
            self.value = max(before / 2, 1.0)
        elif self.accepted == GROWTH_INTERVAL:
            self.value, self.accepted = min(before * 2, 2.0**127), 0
        return self.value < before

    def restore(self, value: float, accepted: int) -> None:
        """Restore a saved state; raise `ValueError` if it is invalid."""
        if not (1 <= value <= 2.0**127 and math.frexp(value)[0] == 0.5 and 0 <= accepted < GROWTH_INTERVAL):
            raise ValueError(f"the loss scale is {value} after {accepted} steps")
        if self._adapts:
            self.value, self.accepted = value, accepted
