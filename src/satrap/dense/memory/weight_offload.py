"""A network whose weights and gradients are on disk, or in host memory while a device computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from satrap.dense.memory.initial_weights import fill_all, initial_weights
from satrap.dense.memory.on_disk import is_on_disk, on_disk
from satrap.dense.memory.pinned_staging import bring
from satrap.runtime.malloc import keep_freed_memory, release_freed_memory

_RETURNED = 1 << 20
"""Bytes from which on a process without spare memory returns a freed block to the system at once."""

_OFF = "satrap_weights_off"
"""Attribute of a network whose weights stay off the device."""


def offload_weights(model: nn.Module, folder: str | None = None) -> nn.Module:
    """Keep the weights of a network, and their gradients, off the device; return the network.

    ```python
    model = satrap.dense.offload_weights(model, "/ssd")
    trainer = satrap.Trainer(model, schema, dense_optimizer=satrap.dense.offloaded(make, "/ssd"), ...)
    ```

    In files, weights are memory-mapped: the system reads them as layers compute, and drops them when it needs
    the memory. Weights that share memory still do. Buffers stay in memory. On the device cpu, results are
    equal to the bit. Another device gets a copy of a layer's weights for its forward pass and again for its
    backward pass; gradients are copied back. Another device requires a single process that computes in
    float32, without `checkpoint_activations` and `compile`; `satrap.dense.memory.weight_streaming` describes
    which networks it suits.

    Args:
        model: the network, changed in place; its tensors may be without memory, see `build`.
        folder: a folder on a fast disk; default: host memory, which has an effect only if the device is not
            the cpu.

    Raises:
        ConfigError: the folder is not writable, or full; also raised in the first backward pass.
    """
    if folder is not None:
        if (record := initial_weights(model)) is not None:
            record.place = partial(_placed, folder)
            fill_all(model)
        _move(model, partial(on_disk, folder=folder))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_Gradient(folder))  # type: ignore[no-untyped-call]
        release_freed_memory()
    model.__dict__[_OFF] = True
    return model


def weights_are_off(model: nn.Module) -> bool:
    """Return whether the weights of a network stay off the device."""
    return _OFF in model.__dict__


def stay_off(model: nn.Module, device: torch.device) -> None:
    """Let a network of `offload_weights` compute on a device: its buffers move there, its weights do not."""
    if device.type == "cpu":
        keep_freed_memory(largest=_RETURNED)
        return
    from satrap.dense.memory.weight_streaming import (
        stream_weights,
    )  # takes a second or two, which few runs need

    for buffer in model.buffers():
        buffer.data = buffer.data.to(device)
    if device.type == "cuda":
        _move(model, Tensor.pin_memory)  # the device reads pinned memory three times as fast
    stream_weights(model, lambda weight: bring(weight, device))


def _move(model: nn.Module, copy: Callable[[Tensor], Tensor]) -> None:
    """Move each block of memory of the weights, with all tensors that share it, unless it is on a disk."""
    moved, weights = dict[int, Tensor](), {p.untyped_storage().data_ptr() for p in model.parameters()}
    for tensor in (*model.parameters(), *model.buffers()):
        key = tensor.untyped_storage().data_ptr()
        if key in weights and tensor.numel() and not is_on_disk(tensor):
            moved[key] = moved[key] if key in moved else copy(_memory(tensor))
            tensor.data = _like(tensor, moved[key])


def _placed(folder: str, tensor: Tensor) -> Tensor:
    return _like(tensor, on_disk(_memory(tensor), folder)) if tensor.numel() else tensor


def _memory(tensor: Tensor) -> Tensor:
    """Return all bytes of a tensor's memory."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _like(tensor: Tensor, memory: Tensor) -> Tensor:
    """Return the tensor in other memory, at the same offset."""
    new = torch.empty(0, dtype=tensor.dtype)
    return new.set_(memory.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


class _Gradient:
    """Moves the gradient of one parameter into a file, once it has been computed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._kept: Tensor | None = None

    def __call__(self, parameter: nn.Parameter) -> None:
        new = parameter.grad
        if new is None or new is self._kept or not new.numel() or new.layout != torch.strided:
            return
        if self._kept is None:
            self._kept = on_disk(new, self._folder)
        else:
            self._kept.copy_(new)
        parameter.grad = self._kept
