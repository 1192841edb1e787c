"""Copies weights and gradients of a CUDA device to the host for a step, and the weights back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Staging:
    """Two buffers in host memory: one for the current parameter and one for the next.

    While the host takes the step of one parameter, the device sends the next one and its gradient. The
    buffers are pinned: copies into pageable memory are ten to thirty times slower. They are kept between
    steps, and their size is twice the largest parameter and its gradient.
    """

    def __init__(self) -> None:
        self._memory = [torch.empty(0, dtype=torch.uint8)] * 2

    def through(self, parameters: Sequence[nn.Parameter]) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Yield each parameter with its copy on the host, including the gradient; then copy the weights back.

        Args:
            parameters: parameters of one CUDA device, with gradients.
        """
        if not parameters:
            return
        device = parameters[0].device
        computing = torch.cuda.current_stream(device)
        copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        copying.wait_stream(computing)
        with torch.cuda.stream(copying):
            host, there = self._fetched(parameters[0], 0)
        for number, parameter in enumerate(parameters, 1):
            current, arrived = host, there
            if number < len(parameters):
                # The copy stream runs in order, so this buffer's previous weights have been copied back
                # first.
                with torch.cuda.stream(copying):
                    host, there = self._fetched(parameters[number], number % 2)
            arrived.synchronize()
            yield parameter, current
            with torch.cuda.stream(copying):
                parameter.copy_(current, non_blocking=True)
        computing.wait_stream(copying)

    def _fetched(self, parameter: nn.Parameter, place: int) -> tuple[nn.Parameter, torch.cuda.Event]:
        """Queue the copy of a parameter and its gradient; return the copy, and an event for its end."""
        assert parameter.grad is not None
        size = parameter.numel() * parameter.element_size()
        if len(self._memory[place]) < 2 * size:
            self._memory[place] = torch.empty(2 * size, dtype=torch.uint8, pin_memory=True)
        memory = self._memory[place]
        weights, gradient = (
            memory[start : start + size].view(parameter.dtype).view(parameter.shape) for start in (0, size)
        )
        host = nn.Parameter(weights.copy_(parameter.detach(), non_blocking=True))
        host.grad = gradient.copy_(parameter.grad, non_blocking=True)
        there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        there.record()
        return host, there


def bring(weight: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a weight on a device; from CUDA, its gradient returns in pinned memory."""
    copied: Tensor = _Brought.apply(weight, device)  # type: ignore[no-untyped-call]
    return copied


class _Brought(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, device: torch.device) -> Tensor:
        return weight.to(device, copy=True, non_blocking=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # PyTorch reuses this memory for the next gradients. The copy waits: a weight used twice sums its
        # gradients.
        pinned = gradient.device.type == "cuda"
        return torch.empty_like(gradient, device="cpu", pin_memory=pinned).copy_(gradient), None
