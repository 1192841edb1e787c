"""The numbers of an optimizer step, in device memory, where a captured graph reads them."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from satrap.store.kernels.optimizers import (
    AdagradKernel,
    AdamKernel,
    FTRLKernel,
    MomentumKernel,
    RowWiseAdagradKernel,
    SGDKernel,
)
from satrap.store.row_spec import UpdateRule

KINDS = (SGDKernel, MomentumKernel, AdagradKernel, RowWiseAdagradKernel, AdamKernel, FTRLKernel)
"""Numbers of an optimizer -> `kind` in `kernels.optimizers`, by position."""
LONGEST = 1 << 20
"""Most steps of a row with bias corrections of their own; all later steps have the correction of the last."""
_DECAY, _CLIP, _BOUND, _PLACES = 8, 9, 10, 16


class StepNumbers:
    """Learning rate, constants of the optimizer and noise of the next step.

    `set` changes them between two steps, or two replays of a graph that was captured with these tensors. It
    only enqueues work on the current stream.

    Attributes:
        kind: position of the optimizer in `KINDS`.
        floats: float32[16], what `kernels.optimizers` lists.
        rate: float64[1], the learning rate.
        corrections: float64[steps, 2], the divisors of Adam's moments; one row for other optimizers.
        noise: int64[1], together with the ids, decides how 16-bit weights are rounded.
    """

    def __init__(self, plan: UpdateRule, device: torch.device) -> None:
        self._plan = plan
        numbers = plan.numbers(1.0)
        self.kind = KINDS.index(type(numbers))
        self._known = [*self._floats(numbers), _rate(numbers)]
        self.floats = torch.tensor(self._known[:-1], dtype=torch.float32, device=device)
        self.rate = torch.tensor(self._known[-1:], dtype=torch.float64, device=device)
        table = (
            corrections(float(numbers.b1), float(numbers.b2)) if isinstance(numbers, AdamKernel) else _NONE
        )
        self.corrections = torch.from_numpy(table).to(device)
        self.noise = torch.zeros(1, dtype=torch.int64, device=device)

    def set(self, lr_scale: float, noise: np.uint64) -> None:
        """Set the factor on the optimizer's lr, and the noise, of the next step."""
        numbers = self._plan.numbers(lr_scale)
        known = [*self._floats(numbers), _rate(numbers)]
        for i, (old, new) in enumerate(zip(self._known, known, strict=True)):
            if old != new:  # a fill passes its value with the launch: no memory of the host must outlive it
                (self.floats[i] if i < _PLACES else self.rate).fill_(new)
        self._known = known
        self.noise.fill_(int(noise.astype(np.int64)))

    def _floats(self, numbers: NamedTuple) -> list[float]:
        """Return the values of `floats`."""
        if isinstance(numbers, AdamKernel):
            b1, b2 = numbers.b1, numbers.b2  # float64
            first: tuple[Any, ...] = (numbers.lr, numbers.eps, b1, 1 - b1, b2, 1 - b2, numbers.shrink)
        else:
            first = numbers
        places = np.zeros(_PLACES, np.float32)
        places[: len(first)] = np.array(first, np.float32)
        if self._plan.shaping is not None:
            places[_DECAY], places[_CLIP] = self._plan.shaping
        if self._plan.bound is not None:
            places[_BOUND] = self._plan.bound[0]
        return [float(x) for x in places]


_NONE = np.ones((1, 2))


def _rate(numbers: NamedTuple) -> float:
    return float(numbers[0])


@cache
def corrections(beta1: float, beta2: float) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return float64[steps, 2]: (1 - beta1^t, sqrt(1 - beta2^t)) for t = 0, 1 ..., until both are 1."""
    slowest = max(beta1, beta2)
    steps = 2 if slowest == 0 else min(LONGEST, math.ceil(54 * math.log(2) / -math.log(slowest)) + 2)
    return np.array([(1 - beta1**t, math.sqrt(1 - beta2**t)) for t in range(steps)])
