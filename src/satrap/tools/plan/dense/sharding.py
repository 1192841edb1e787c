"""Memory and traffic of PyTorch 2.13's `fully_shard` in addition to a network's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from satrap.dense.parallel.param_shards import units
from satrap.settings.mesh import Mesh
from satrap.tools.plan.dense.live import Live
from satrap.tools.plan.dense.network import all_reduce, size_of


@dataclass(slots=True, eq=False)
class _Unit:
    """Weights that are gathered together."""

    parameters: list[nn.Parameter]
    whole: int  # bytes of the weights, padded to equal shards
    shard: int
    gathered: bool = False
    arriving: bool = False  # its weights are being gathered into a buffer
    missing: set[int] = field(default_factory=set)  # weights without a gradient in this backward pass
    used: bool = False


class Sharding:
    """Follows forward and backward passes of a network, and counts the memory and traffic of sharding.

    The weights of a unit are gathered into a buffer and copied from it before the unit computes. In the
    forward pass the buffer stays until the next unit's weights have been copied; in the backward pass the
    next unit's weights are prefetched. Gradients of a unit are copied into a buffer, which stays until
    the next unit's gradients are reduced, and come back as a shard.

    Args:
        model: the network, with whole weights; their gradients are removed.
        mesh: a mesh with `sharded`.
        live: the tracker of bytes.

    Attributes:
        gathers: bytes of gathered whole weights.
        reduces: bytes of reduced whole gradients.
    """

    def __init__(self, model: nn.Module, mesh: Mesh, live: Live) -> None:
        self._mesh = mesh
        self._live, self._again, self._waits = live, mesh.regathers, mesh.reduces_once
        self._units, self._order = list[_Unit](), list[_Unit]()
        self._held = self._reducing = self.gathers = self.reduces = 0
        self._backward = False
        self._reduced = set[_Unit]()
        taken = set[int]()
        for module in [*units(model), model]:
            parameters = [p for p in module.parameters() if id(p) not in taken and p.ndim > 0]
            taken |= {id(p) for p in parameters}
            if parameters:
                self._attach(module, parameters, mesh.shards)

    def _attach(self, module: nn.Module, own: list[nn.Parameter], shards: int) -> None:
        shard = sum(shard_bytes(p, shards) for p in own)
        unit = _Unit(own, shard * shards, shard)
        self._units.append(unit)
        self._live.hold("parameters", shard)
        module.register_forward_pre_hook(lambda *_: self._before(unit))
        module.register_forward_hook(lambda _, __, found: self._after(unit, found))
        for parameter in own:
            if parameter.requires_grad:
                called = partial(self._computed, unit)
                parameter.register_post_accumulate_grad_hook(called)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Start a forward pass."""
        self._backward = False
        self._order.clear()
        for unit in self._units:
            unit.missing = {id(p) for p in unit.parameters if p.requires_grad}
            unit.used = False

    def turn(self) -> None:
        """Start the backward pass; the forward pass leaves no buffer."""
        self._backward = True
        self._keep(0)

    def end(self, *, last: bool = True) -> None:
        """End a backward pass, which may be the last of a step."""
        for unit in self._units[::-1]:  # the root first
            if unit.used and (last if self._waits else unit.missing):
                self._reduce(unit)
        self._live.hold("buffers", -self._reducing)
        self._reducing = 0

    def sent(self, times: float = 1.0) -> tuple[float, float]:
        """Return the bytes that a process sends for weights and for gradients, with ring algorithms.

        Args:
            times: number of parts of a batch that each computed part stands for.
        """
        times = 1.0 if self._waits else times
        shards, part = self._mesh.shards, (self._mesh.shards - 1) / self._mesh.shards
        again = all_reduce(self.reduces / shards, self._mesh.data // shards)
        return times * self.gathers * part, times * (self.reduces * part + again)

    def _keep(self, count: int) -> None:
        self._live.hold("buffers", -self._held)
        self._held = count

    def _fetch(self, unit: _Unit) -> None:
        if not unit.gathered and not unit.arriving:
            unit.arriving = True
            self.gathers += unit.whole
            self._live.hold("buffers", unit.whole)

    def _gather(self, unit: _Unit) -> None:
        self._fetch(unit)
        if unit.gathered:
            return
        if not self._backward:
            self._keep(0)
        unit.gathered, unit.arriving = True, False
        self._live.hold("buffers", unit.whole)
        if self._backward:
            self._live.hold("buffers", -unit.whole)
        else:
            self._held = unit.whole

    def _release(self, unit: _Unit) -> None:
        if unit.gathered:
            unit.gathered = False
            self._live.hold("buffers", -unit.whole)

    def _before(self, unit: _Unit) -> None:
        self._gather(unit)

    def _after(self, unit: _Unit, found: Any) -> None:
        if self._backward:  # recomputation
            return
        if self._again:
            self._release(unit)
        unit.used = True
        self._order.append(unit)
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _: self._turned(unit))  # type: ignore[no-untyped-call]

    def _turned(self, unit: _Unit) -> None:
        """Start the backward pass of a unit."""
        if not unit.missing:
            return
        self._gather(unit)
        place = self._order.index(unit)
        if place:
            self._fetch(self._order[place - 1])

    def _computed(self, unit: _Unit, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self._live.call(parameter.grad, "gradients")
        unit.missing.discard(id(parameter))
        if not unit.missing and not self._waits:
            self._reduce(unit)

    def _reduce(self, unit: _Unit) -> None:
        self._release(unit)
        self._live.hold("buffers", -self._reducing)
        self._reducing = unit.whole
        self._live.hold("buffers", unit.whole)
        for parameter in unit.parameters:
            parameter.grad = None
        self.reduces += unit.whole
        self._live.hold("gradients", unit.shard)
        if unit in self._reduced:  # added to the previous part's gradient
            self._live.hold("gradients", -unit.shard)
        self._reduced.add(unit)
        unit.missing = set()


def hold_weights(parameters: Iterable[nn.Parameter], mesh: Mesh, live: Live) -> dict[nn.Parameter, int]:
    """Count the weights that `Sharding` does not, including their gradients.

    Returns:
        Trained parameter -> bytes of the process's shard or replica of it.
    """
    trained = dict[nn.Parameter, int]()
    for parameter in parameters:
        count = size_of(parameter)
        if mesh.shards == 1 or parameter.ndim == 0:
            live.hold("parameters", count)
            live.follow(parameter)
        else:
            count = shard_bytes(parameter, mesh.shards)
        if parameter.requires_grad:
            trained[parameter] = count
    return trained


def shard_bytes(parameter: Tensor, shards: int) -> int:
    """Return the bytes of the largest shard of a weight that is sharded by rows."""
    rows = math.ceil(parameter.shape[0] / shards)
    return rows * math.prod(parameter.shape[1:]) * parameter.element_size()
