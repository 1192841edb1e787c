"""Copies weights to the computing device, one layer at a time, and drops them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from satrap.dense.parallel.param_shards import units

Bring = Callable[[Tensor], Tensor]
"""Returns a copy of a weight; gradients flow back through the copy."""

_Names = Sequence[tuple[nn.Module, str]]


def stream_weights(model: nn.Module, bring: Bring) -> None:
    """Let each layer compute with temporary copies of its weights.

    Copies are made before a layer's forward pass and dropped after it. The backward pass copies the weights
    it needs again. So at most one layer's weights are on the device at a time, in addition to weights that
    belong to no large layer or to several layers, which stay for the whole forward pass, see `units`. A
    weight that is changed before it is used, as by a mask, is kept for the backward pass in its changed form.

    Weights must be read by the modules that own them, as in all PyTorch layers except
    `nn.MultiheadAttention`; otherwise PyTorch reports tensors on different devices.

    Args:
        model: the network; the `forward` of some of its modules is replaced.
        bring: makes a copy.
    """
    stream, taken = _WeightStream(bring), set[int]()
    for unit in units(model):
        names = [(unit, name) for name, _ in unit.named_parameters(recurse=False)]
        taken |= {id(p) for p in unit.parameters(recurse=False)}
        unit.forward = partial(stream.run, unit.forward, names)
    rest = [
        (module, name)
        for module in model.modules()
        for name, p in module.named_parameters(recurse=False)
        if id(p) not in taken
    ]
    model.forward = partial(stream.run_all, model.forward, rest)


class _WeightStream:
    def __init__(self, bring: Bring) -> None:
        self._bring = bring
        self._copied = dict[int, Tensor]()  # memory of a copy -> its weight

    def run_all(self, forward: Callable[..., Any], own: _Names, *args: Any, **named: Any) -> Any:
        """Call the forward pass of the network."""
        with saved_tensors_hooks(self._put_away, self._fetch):
            return self.run(forward, own, *args, **named)

    def run(self, forward: Callable[..., Any], own: _Names, *args: Any, **named: Any) -> Any:
        """Call a forward pass with copies of weights."""
        with self._present(own):
            return forward(*args, **named)

    @contextmanager
    def _present(self, own: _Names) -> Iterator[None]:
        weights = {id(p): p for module, name in own if (p := module._parameters[name]) is not None}
        copies = {key: self._bring(weight) for key, weight in weights.items()}
        before = [(module, name, module._parameters[name]) for module, name in own]
        sources = {copies[key].untyped_storage()._cdata: weight for key, weight in weights.items()}
        self._copied |= sources
        for module, name, weight in before:
            module._parameters[name] = copies[id(weight)]  # type: ignore[assignment]
        del copies
        try:
            yield
        finally:
            for module, name, weight in before:
                module._parameters[name] = weight
            for memory in sources:
                del self._copied[memory]

    def _put_away(self, tensor: Tensor) -> Any:
        weight = self._copied.get(tensor.untyped_storage()._cdata)
        if weight is None:
            return tensor
        return weight, tensor.size(), tensor.stride(), tensor.storage_offset()

    def _fetch(self, kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        weight, *place = kept
        return torch.as_strided(self._bring(weight.detach()), *place)
