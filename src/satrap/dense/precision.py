"""The number format in which the network computes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from satrap.errors import ConfigError

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Name in recipes -> format of the factors of a product."""


def check_precision(precision: str) -> None:
    """Raise `ConfigError` unless a precision is known."""
    if precision not in PRECISIONS:
        raise ConfigError(f"precision {precision!r} is unknown", fix=f"use one of {', '.join(PRECISIONS)}")


def computed(forward: Callable[[], Tensor], precision: str, device: torch.device) -> Tensor:
    """Return what a network's forward pass gives, float32 whatever it was computed in.

    With "bfloat16" (8 significant bits, the range of float32), `torch.autocast` rounds the factors of matrix
    products, here and in the backward pass. Weights and their gradients stay float32.

    Args:
        forward: the pass; the loss is no part of it.
        precision: one of `PRECISIONS`.
        device: where the network is.
    """
    if precision == "float32":
        return forward()
    with torch.autocast(device.type, dtype=PRECISIONS[precision]):
        result = forward()
    return result.float()
