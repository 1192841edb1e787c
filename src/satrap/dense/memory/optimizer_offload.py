"""An optimizer with state and arithmetic in host memory, or with its state on a disk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from satrap.dense.backends.protocol import in_memory
from satrap.dense.compute.fused import uses_default_impl
from satrap.dense.memory.on_disk import is_on_disk, on_disk
from satrap.dense.memory.pinned_staging import Staging
from satrap.runtime.malloc import release_freed_memory

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def offloaded(make: MakeOptimizer, folder: str | None = None) -> MakeOptimizer:
    """Return a function that makes an optimizer as `make` does, with its state off the device.

    ```python
    dense_optimizer = satrap.dense.offloaded(torch.optim.Adam, "/ssd")
    ```

    Args:
        make: makes an optimizer that updates each parameter independently of the others, such as SGD,
            Adagrad, Adam and AdamW.
        folder: a folder on a fast disk for the state; default: keep it in host memory.
    """
    return lambda parameters: OffloadedOptimizer(make(parameters), folder)


class OffloadedOptimizer(torch.optim.Optimizer):
    """Takes the steps of another optimizer, on the CPU and one parameter at a time.

    For a parameter on a CUDA device, weights and gradient are copied to the host, and the new weights back,
    concurrently with the steps of other parameters. Steps of parameters on the CPU are equal to the other
    optimizer's to the bit; steps of parameters on a device differ from the device's own by rounding, even if
    weights are only computed there.

    On a disk, each tensor of the state is a memory-mapped file. The system reads it when its parameter's step
    runs, and writes it back when it needs the memory. The files have no name, so they disappear when the
    process ends, however it ends; snapshots hold the lasting state.

    Args:
        inner: the other optimizer; it has taken no step.
        folder: see `offloaded`.

    Attributes:
        inner: of the arguments.

    Raises:
        ConfigError: the folder is not writable, or full; also raised in the first `step`.
    """

    def __init__(self, inner: torch.optim.Optimizer, folder: str | None) -> None:
        super().__init__(inner.param_groups, inner.defaults)  # the same group objects, not copies
        self.inner, self._folder = inner, folder
        self._staging = Staging()
        self.state = inner.state
        if folder is not None:
            on_disk(torch.zeros(1), folder)
        for parameter in list(self.state):
            self._keep(parameter, self.state[parameter])

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take the step of every parameter that has a gradient."""
        assert closure is None
        groups = {p: group for group in self.param_groups for p in group["params"] if p.grad is not None}
        for parameter, group in groups.items():
            if parameter.device.type == "cpu":
                self._step(group, parameter, parameter)
        for parameter, host in self._staging.through([p for p in groups if p.device.type != "cpu"]):
            self._step(groups[parameter], parameter, host)

    def _step(self, group: Mapping[str, Any], parameter: nn.Parameter, host: nn.Parameter) -> None:
        inner = self.inner
        inner.param_groups = [{**group, **_fused(group, host), "params": [host]}]
        inner.state = defaultdict(dict, {host: self.state[parameter]} if parameter in self.state else {})
        inner.step()
        self._keep(parameter, inner.state[host])

    def _keep(self, parameter: Tensor, entry: MutableMapping[str, Any]) -> None:
        """Move the state of a parameter to its place: host memory or the disk."""
        moved = {key: self._kept(value) for key, value in entry.items()}
        new = any(moved[key] is not value for key, value in entry.items())
        entry.clear()
        self.state[parameter] = moved
        if new:  # freed blocks would fragment memory: each is a little too small for the next tensor
            release_freed_memory()

    def _kept(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.ndim or not value.numel():
            return value
        if self._folder is None:
            return value.cpu()
        return value if is_on_disk(value) else on_disk(value, self._folder)

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a saved state; it may be the state of the plain optimizer."""
        groups = state_dict["param_groups"]
        numbers = [number for group in groups for number in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for current, saved in zip(self.param_groups, groups, strict=True):
            current.update({key: value for key, value in saved.items() if key != "params"})
        self.state.clear()
        for number, parameter in zip(numbers, parameters, strict=True):
            if entry := state_dict["state"].get(number):
                self._keep(parameter, {key: _own(value) for key, value in entry.items()})


def _fused(group: Mapping[str, Any], host: nn.Parameter) -> dict[str, bool]:
    """Return the option for a single-pass step, if a device waits for the step."""
    plain = uses_default_impl(group) and host.is_floating_point() and host.is_pinned()
    return {"fused": True} if plain else {}


def _own(value: Any) -> Any:
    """Return a value; copy a tensor, and load a saved one."""
    return value.clone() if isinstance(value, Tensor) else in_memory(value)
