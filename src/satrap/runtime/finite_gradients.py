"""The check that gradients are finite, which skips gradients that a kernel has checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_CHECKED = "satrap_checked_gradient"


def note_finite(leaf: Tensor, gradient: npt.NDArray[np.float32]) -> None:
    """Record that the array which becomes the gradient of a leaf, and its sum, are finite.

    It takes the array: a second reference to its tensor would make autograd copy it.
    """
    setattr(leaf, _CHECKED, gradient)


def all_finite(leaves: Iterable[Tensor]) -> bool:
    """Return whether the gradient of each leaf, if any, and its sum are finite."""
    return all(map(_finite, leaves))


def _finite(leaf: Tensor) -> bool:
    gradient: Tensor | None = leaf.grad
    checked: Any = getattr(leaf, _CHECKED, None)
    if gradient is None:
        return True
    # A gradient that has changed since it was noted has another version, or is at another address.
    if checked is not None and gradient.data_ptr() == checked.ctypes.data and gradient._version == 0:
        return True
    return bool(torch.isfinite(gradient.float().sum()))
