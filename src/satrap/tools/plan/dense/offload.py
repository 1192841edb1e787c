"""Needs of a process or device for a network with offloaded weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from satrap.dense.memory.weight_streaming import stream_weights
from satrap.tools.plan.dense.live import Live
from satrap.tools.plan.dense.network import size_of


def leave_weights(model: nn.Module, live: Live, *, stream: bool) -> dict[nn.Parameter, int]:
    """Count weights and gradients that are present while they are used: see `satrap.dense.offload_weights`.

    Args:
        model: the network; changed.
        live: the tracker of bytes.
        stream: whether each layer computes with a copy of its weights; else with memory-mapped files, which
            the system caches as space permits.

    Returns:
        Trained parameter -> its bytes.
    """
    if stream:
        stream_weights(model, partial(_copy, live))
    else:
        live.begin(max(map(size_of, model.parameters()), default=0))  # its initial values exist first
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(_drop)  # type: ignore[no-untyped-call]
    return {parameter: size_of(parameter) for parameter in trained}


def _copy(live: Live, weight: Tensor) -> Tensor:
    copy: Tensor = _Copy.apply(weight)  # type: ignore[no-untyped-call]
    live.call(copy, "parameters")
    return copy


def _drop(parameter: nn.Parameter) -> None:
    parameter.grad = None


class _Copy(torch.autograd.Function):
    """Copies a weight; its gradient is passed on unchanged."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return torch.empty_like(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient
