"""Takes one step of a backend, from a loss to the result."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from satrap.dense import DenseBackend, StepResult


def stepped(
    dense: DenseBackend,
    loss: Tensor | None,
    rows: Sequence[Tensor] = (),
    lr_scale: float = 1.0,
    *,
    share: float = 1.0,
    stop: bool = False,
) -> StepResult:
    """Compute the gradients of a loss, if there is one, and take the step."""
    if loss is not None:
        dense.backward(loss, share)
    return dense.step(rows, lr_scale, stop=stop).result()
