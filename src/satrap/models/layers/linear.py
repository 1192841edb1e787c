"""Linear layers that use the faster of PyTorch's two matrix libraries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from satrap.batch import shared_of

_SMALLEST = 1 << 20
"""Fewest multiplications for which oneDNN's larger cost per call is worthwhile."""

_ROWS = 256
"""Number of samples for which weights are reordered; other numbers also work."""
_SPLITS = 2
"""Most sets of shared columns for which a layer's weights are split."""

_onednn: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_reorder: Any = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None) if _onednn else None


def _by_intel() -> bool:
    """Return whether the processor is Intel's; False if that is unknown."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return "GenuineIntel" in file.read(4096)
    except OSError:
        return False


_INTEL = _by_intel()
"""Whether MKL, the BLAS library of PyTorch's CPU builds, is the faster one for the backward pass."""


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `left @ right.T + bias`, by oneDNN."""
    assert _onednn is not None
    result: Tensor = _onednn(left, right, bias, "none", [], "")
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        [gradient] = gradients
        of_x, of_weight, of_bias = ctx.needs_input_grad
        of_bias = gradient.sum(0) if of_bias else None
        if _INTEL or torch.is_grad_enabled():  # only PyTorch's operations support second gradients
            return gradient @ weight if of_x else None, gradient.T @ x if of_weight else None, of_bias
        return (
            _product(gradient, weight.T) if of_x else None,
            _product(gradient.T.contiguous(), x.contiguous().T) if of_weight else None,
            of_bias,
        )


class XavierLinear(nn.Linear):
    """`torch.nn.Linear` that starts with Xavier-uniform weights (Glorot and Bengio, AISTATS 2010) and bias 0.

    Args:
        in_features, out_features, bias: see `torch.nn.Linear`.
        gain: factor on the weights; with 0 they start at 0.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, gain: float = 1.0) -> None:
        self.gain = gain  # `nn.Linear` calls `reset_parameters`
        super().__init__(in_features, out_features, bias)

    def reset_parameters(self) -> None:
        """Set the initial weights."""
        nn.init.xavier_uniform_(self.weight, self.gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Linear(XavierLinear):
    """`XavierLinear` that uses oneDNN on CPUs, instead of the BLAS library PyTorch was built with.

    Same parameters, same result up to rounding. PyTorch's CPU builds multiply float32 matrices with MKL,
    which uses AVX-512 only on Intel's processors; on others oneDNN was measured 2 to 4 times faster. On
    Intel's the backward pass uses MKL: it is as fast for wide layers, and up to four times as fast for narrow
    ones (`benchmarks/peers`). Other types and devices, autocast and compilation use PyTorch's operation.
    """

    packed: Packed | None = None
    """The weights in the fastest layout for products without gradients, see `pack`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return float32[size, out_features] from float32[size, in_features]."""
        if self.packed is not None and self.packed.suits(input, self.weight):
            return self.packed(input, self.bias)
        return linear(input, self.weight, self.bias)


def pack(network: nn.Module, like: nn.Module | None = None) -> None:
    """Prepare the linear layers of a network, also plain `nn.Linear`, for many products without gradients.

    The layers keep a second copy of their weights, in oneDNN's order, and multiply columns shared by many
    samples only once, see `satrap.batch.Shared`. Results are the same up to rounding. After a change of their
    weights, layers compute as before until `pack` is called again. A copy of the network is not prepared.

    Args:
        network: the network.
        like: a network of the same layers; columns that were shared there are also expected here.
    """
    if _reorder is None:
        return
    layers = {} if like is None else dict(like.named_modules())
    for name, layer in network.named_modules():
        if type(layer) is nn.Linear or isinstance(layer, XavierLinear):
            layer.__class__ = Linear  # the same parameters
        if isinstance(layer, Linear) and layer.weight.dtype in (torch.float32, torch.bfloat16):
            before = getattr(layers.get(name), "packed", None)  # another thread may compute with it
            layer.packed = Packed(layer.weight, list(before.splits) if before is not None else ())


class Packed:
    """The weights of a linear layer in oneDNN's order, whole and split by columns that samples share.

    Args:
        weight: [out_features, in_features], float32, or bfloat16 for use under autocast.
        splits: sets of columns that are expected to be shared.
    """

    def __init__(self, weight: Tensor, splits: Iterable[bytes] = ()) -> None:
        self._of, self._version = weight, weight._version
        self._whole = _in_order(weight)
        self.splits: dict[bytes, tuple[Tensor, Tensor]] = {}
        self._last = b""
        for columns in splits:
            self._prepare(columns)

    def __deepcopy__(self, _: object) -> None:
        """Return None, because the copy of a layer has other weights."""

    def suits(self, x: Tensor, weight: Tensor) -> bool:
        """Return whether the packed weights match a layer's weights and are faster for an input."""
        mixed = weight.dtype == torch.bfloat16
        return (
            weight is self._of
            and weight._version == self._version
            and x.ndim == 2
            and len(x) * weight.numel() >= _SMALLEST
            and not torch.is_grad_enabled()
            and torch.is_autocast_enabled("cpu") == mixed
            and (mixed or x.dtype == torch.float32)
            and x.device.type == "cpu"
            and not torch.compiler.is_compiling()
        )

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return the layer's output for [size, in_features]."""
        shared = shared_of(x)
        split = None if shared is None else self._split(shared.columns.tobytes())
        if shared is None or split is None:
            return _product(x.to(self._of.dtype), self._whole, bias)
        unshared, common = split
        runs = F.linear(shared.runs.to(common.dtype), common, bias)
        x = shared.own.to(common.dtype)
        if len(runs) == 1:
            return _product(x, unshared, runs[0])
        result: Tensor = _onednn.binary(x, runs.index_select(0, shared.run), unshared, None, "add")
        return result

    def _split(self, columns: bytes) -> tuple[Tensor, Tensor] | None:
        """Return the weights of the columns that are not shared, and of the shared columns.

        Return None for the first product with these columns: clients choose the shared columns, and splitting
        weights for a single use is not worthwhile.
        """
        split, again = self.splits.get(columns), columns == self._last
        self._last = columns
        return self._prepare(columns) if split is None and again else split

    def _prepare(self, columns: bytes) -> tuple[Tensor, Tensor]:
        if len(self.splits) == _SPLITS:
            self.splits.pop(next(iter(self.splits)))
        weight, shared = self._of.detach(), torch.from_numpy(np.frombuffer(columns, np.bool_).copy())
        split = self.splits[columns] = _in_order(weight[:, ~shared]), weight[:, shared].contiguous()
        return split


def _in_order(weight: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        ordered: Tensor = _reorder(weight.detach().contiguous(), _ROWS)
    return ordered


class GroupedLinear(nn.Module):
    """Several linear layers of the same shape, each with its own input.

    Weights start as in `XavierLinear`.

    Args:
        count: number of layers, at least one.
        in_features, out_features: of each layer.

    Attributes:
        weight: float32[count * out_features, in_features], one layer below the other.
        bias: float32[count * out_features].
    """

    def __init__(self, count: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(count * out_features, in_features))
        self.bias = nn.Parameter(torch.empty(count * out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial weights."""
        bound = xavier_bound(self.weight.shape[1], self.out_features)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.zeros_(self.bias)

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return float32[size, out_features] of each layer; a single input is used for all layers.

        A process with some of the layers takes the inputs of these layers, and returns their outputs.
        """
        weights, biases = (torch.split(_own(p), self.out_features) for p in (self.weight, self.bias))
        inputs = inputs if len(inputs) > 1 else [*inputs] * len(biases)
        return [linear(*each) for each in zip(inputs, weights, biases, strict=True)]


def xavier_bound(fan_in: int, fan_out: int) -> float:
    """Return the largest initial weight of a layer, see `XavierLinear`."""
    return math.sqrt(6 / (fan_in + fan_out))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ weight.T + bias`, see `Linear`."""
    if _onednn is None or not _suits(x, weight):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return,no-untyped-call]


def _suits(x: Tensor, weight: Tensor) -> bool:
    plain = type(x) is Tensor and type(weight) in (Tensor, nn.Parameter)
    return (
        plain
        and x.ndim == 2
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and len(x) * weight.numel() >= _SMALLEST
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _own(parameter: Tensor) -> Tensor:
    """Return this process's shard of a parameter."""
    local: Tensor = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return local
