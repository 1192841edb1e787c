"""Cuts the layers of a network like the processes of a tensor group, in a single process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from satrap.dense.parallel.tensor_plan import Cut

Sent = Callable[[int], None]
"""Called with the bytes of each tensor that the group sums; a gathered tensor counts half."""


def cut_layers(model: nn.Module, plan: Mapping[str, Cut], parts: int, sent: Sent) -> None:
    """Give each layer of a plan the shard of one process, and let it compute with that shard.

    The model must have fake weights, because they become shorter.
    """
    for name, cut in plan.items():
        layer = model.get_submodule(name)
        if cut == "experts":
            _cut_experts(layer, parts, sent)
            continue
        assert isinstance(layer, nn.Linear)
        dim = 1 if cut == "row" else 0
        layer.weight = _shorter(layer.weight, dim, parts)
        if layer.bias is not None and cut != "row":
            layer.bias = _shorter(layer.bias, 0, parts)
        layer.forward = partial(_forward, layer, cut, parts, sent)  # type: ignore[method-assign]


def _cut_experts(experts: nn.Module, parts: int, sent: Sent) -> None:
    for module in experts.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, _shorter(parameter, 0, parts))
    whole = experts.forward

    def forward(x: Tensor) -> Any:
        output = whole(_Entering.apply(x, sent))  # type: ignore[no-untyped-call]
        return _Gathered.apply(output, parts, sent, 1)  # type: ignore[no-untyped-call]

    experts.forward = forward


def _shorter(parameter: Tensor, dim: int, parts: int) -> nn.Parameter:
    shape = list(parameter.shape)
    shape[dim] //= parts
    return nn.Parameter(parameter.new_empty(shape), requires_grad=parameter.requires_grad)


def _forward(layer: nn.Linear, cut: Cut, parts: int, sent: Sent, x: Tensor) -> Tensor:
    if cut == "row":
        summed: Tensor = _Summed.apply(F.linear(x, layer.weight), sent)  # type: ignore[no-untyped-call]
        return summed if layer.bias is None else summed + layer.bias
    output = F.linear(_Entering.apply(x, sent), layer.weight, layer.bias)  # type: ignore[no-untyped-call]
    if cut == "alone":
        output = _Gathered.apply(output, parts, sent, -1)  # type: ignore[no-untyped-call]
    return output


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _Summed(torch.autograd.Function):
    """Outputs of row shards, summed over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: Sent) -> Tensor:
        sent(_bytes(x))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Entering(torch.autograd.Function):
    """Inputs of a column shard, whose gradients are summed over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: Sent) -> Tensor:
        ctx.sent = sent
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.sent(_bytes(gradient))
        return gradient.clone(), None


class _Gathered(torch.autograd.Function):
    """Concatenated outputs of all shards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parts: int, sent: Sent, dim: int) -> Tensor:
        ctx.parts, ctx.dim = parts, dim
        together = x.new_empty(parts * len(x), *x.shape[1:])
        sent(_bytes(together) // 2)
        return torch.cat(together.chunk(parts), dim=dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return gradient.chunk(ctx.parts, dim=ctx.dim)[0].contiguous(), None, None, None
