"""Optimizer steps that are one kernel, and that the device itself skips after bad gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

WAYS = ("foreach", "fused", "capturable", "differentiable")
"""Options of PyTorch's optimizers that choose the implementation of a step, not its result."""

_FUSED_HERE = (torch.optim.Adam, torch.optim.AdamW)
_LEFT_OUT = (*_FUSED_HERE, torch.optim.SGD)


def uses_default_impl(group: Mapping[str, Any]) -> bool:
    """Return whether the creator of an optimizer left the implementation of its step open."""
    chosen = any(group.get(way) for way in WAYS if way != "fused")
    return group.get("fused", False) is None and not chosen and isinstance(group["lr"], float)


def fuse(optimizer: torch.optim.Optimizer) -> None:
    """Make the step of `Adam` or `AdamW` on CUDA devices one kernel, unless its creator chose otherwise.

    PyTorch's default there is some ten kernels, each of which reads and writes all elements. The results
    differ by rounding.
    """
    groups = optimizer.param_groups
    if type(optimizer) in _FUSED_HERE and all(
        uses_default_impl(group) and all(p.is_cuda and p.is_floating_point() for p in group["params"])
        for group in groups
    ):
        for group in groups:
            group["fused"] = True


def keep_impl_flags(
    saved: Sequence[dict[str, Any]], own: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return saved parameter groups with an optimizer's own `WAYS`: the snapshot's device may differ."""
    if len(saved) != len(own):  # PyTorch raises its own error for this
        return list(saved)
    return [
        {**group, **{way: here[way] for way in WAYS if way in here}}
        for group, here in zip(saved, own, strict=True)
    ]


def can_leave_out(optimizer: torch.optim.Optimizer | None) -> bool:
    """Return whether the next step may be a `step_unless_overflow`.

    It may not if parameters are on several devices, nor if it is the first step of a parameter: SGD would
    then use uninitialized memory as its momentum.
    """
    if optimizer is None or type(optimizer) not in _LEFT_OUT:
        return False
    return len({p.device for group in optimizer.param_groups for p in group["params"]}) == 1 and all(
        group["fused"]
        and (
            group.get("momentum") == 0 or all(p.grad is None or p in optimizer.state for p in group["params"])
        )
        for group in optimizer.param_groups
    )


def step_unless_overflow(optimizer: torch.optim.Optimizer, refused: Tensor) -> None:
    """Take a step, unless `refused`, a boolean tensor that the host may not know yet.

    `torch.amp.GradScaler` uses fused optimizers in this way.
    """
    optimizer.found_inf, optimizer.grad_scale = refused.float(), None  # type: ignore[attr-defined]
    try:
        optimizer.step()
    finally:
        del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]


class HostCopy:
    """A device-to-host copy of numbers that later computation on the device does not delay.

    Args:
        numbers: of any shape.
    """

    def __init__(self, numbers: Tensor) -> None:
        self._copied: torch.cuda.Event | None = None
        self._numbers = numbers
        if numbers.is_cuda:
            pinned = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers = pinned.copy_(numbers, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(numbers.device))

    def wait(self) -> Tensor:
        """Wait for the numbers, and return them on the host."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._numbers
