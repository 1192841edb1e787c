"""Spreads a network over a mesh with PyTorch's own tools, and describes each process's shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from satrap.checkpoint.saved_dense import SavedTensor
from satrap.dense.backends.protocol import in_memory
from satrap.dense.memory.initial_weights import InitialWeights
from satrap.dense.parallel.tensor_plan import Cut
from satrap.settings.mesh import Mesh

UNIT = 1 << 16
"""From this many parameters on, a layer's weights are gathered on their own, not with their parent's."""


@dataclass(frozen=True, slots=True)
class ParamShard:
    """This process's shard of one parameter.

    Args:
        name: name of the parameter in the network.
        parameter: the parameter in the wrapped network.
        tensor_dim: the dimension that the tensor group splits; None: each of its processes has all.
        shape: shape at this tensor coordinate, before rows are sharded.
        sharded: whether its rows are sharded over the shard group.
        mesh: mesh of the network, or of its stage.
    """

    name: str
    parameter: nn.Parameter
    tensor_dim: int | None
    shape: torch.Size
    sharded: bool
    mesh: DeviceMesh

    @property
    def local(self) -> Tensor:
        """This process's elements, sharing memory with the parameter."""
        return _local(self.parameter.detach())

    @property
    def gradient(self) -> Tensor | None:
        """The gradient of `local`."""
        return None if self.parameter.grad is None else _local(self.parameter.grad)

    @property
    def region(self) -> tuple[list[int], list[int], list[int]]:
        """Shape of the whole parameter, and offset and size of this process's shard."""
        whole, start, size = list(self.shape), [0] * len(self.shape), list(self.shape)
        if self.tensor_dim is not None:
            mesh, dim = self.mesh["tensor"], self.tensor_dim
            whole[dim] *= mesh.size()
            start[dim] = size[dim] * mesh.get_local_rank()
        if self.sharded:
            first, size[0] = chunk(size[0], self.mesh["shard"].size(), self.mesh["shard"].get_local_rank())
            start[0] += first
        return whole, start, size

    @property
    def first(self) -> bool:
        """Whether this process is the first of all that hold the same shard."""
        return all(self.mesh[axis].get_local_rank() == 0 for axis in self._copied)

    @property
    def _copied(self) -> list[str]:
        """The axes of the mesh along which processes hold the same shard."""
        return ["replicate"] + ["shard"] * (not self.sharded) + ["tensor"] * (self.tensor_dim is None)

    def equalize(self) -> None:
        """Copy the shard of the first process to all processes that hold the same one; all call this."""
        local = self.local
        for axis in self._copied:
            if self.mesh[axis].size() > 1:
                dist.broadcast(local, group=self.mesh[axis].get_group(), group_src=0)

    def cut(self, whole: Tensor | SavedTensor) -> Tensor:
        """Return this process's shard of a tensor that has the shape of the whole parameter."""
        _, start, size = self.region
        if not isinstance(whole, Tensor):
            return whole.read(start, size)
        for dim, (begin, count) in enumerate(zip(start, size, strict=True)):
            whole = whole.narrow(dim, begin, count)
        return whole

    def cut_state(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Return this process's shard of the parameter's optimizer state, with tensors copied."""
        return {
            key: self.cut(value).clone()
            if getattr(value, "shape", None) == self.parameter.shape
            else in_memory(value)
            for key, value in whole.items()
        }


def chunk(size: int, parts: int, number: int) -> tuple[int, int]:
    """Return offset and size of a part, with the split of `torch.chunk` and `fully_shard`."""
    each = -(-size // parts)
    begin = min(number * each, size)
    return begin, min(each, size - begin)


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local


def shard_model(
    model: nn.Module,
    mesh: Mesh,
    device_mesh: DeviceMesh,
    plan: Mapping[str, Cut],
    stages: Sequence[nn.Module] = (),
    initial: InitialWeights | None = None,
) -> list[ParamShard]:
    """Shard a network in place, and return its parameter shards, one each in the order of `parameters`.

    The processes of a tensor group split linear layers, by `parallelize_module`. Then `fully_shard` shards
    weights by rows, if the mesh is sharded. Layers are processed one after another, so that a network without
    memory needs memory for its shards and one whole layer only. Weights must be equal on all processes before
    the call: nothing here makes them equal.

    Args:
        model: the network.
        mesh: how its processes split it.
        device_mesh: the same mesh for PyTorch.
        plan: linear layer -> how it is split.
        stages: each calls some of the network's modules, and has them as its own; only these are sharded.
            Default: the network.
        initial: computes tensors that have no memory; default: all have memory.
    """
    stages = stages or [model]
    ids = {id(p) for stage in stages for p in stage.parameters()}
    names = {name for name, p in model.named_parameters() if id(p) in ids}
    for name, cut in plan.items():
        if any(each.startswith(f"{name}.") for each in names):
            _fill(initial, model.get_submodule(name))
            parallelize_module(model, device_mesh["tensor"], {name: _style(cut)}, src_data_rank=None)
            for module in model.get_submodule(name).modules():
                _let_go(module)
    cuts = {n: (_tensor_dim(p), _local(p.detach()).shape) for n, p in model.named_parameters() if n in names}
    scalars = {p for stage in stages for p in stage.parameters() if p.ndim == 0}
    if mesh.shards > 1:
        dims = ("replicate", "shard") if mesh.data > mesh.shards else "shard"
        for unit in [target for stage in stages for target in (*units(stage), stage)]:
            _fill(initial, unit)
            fully_shard(
                unit, mesh=device_mesh[dims], reshard_after_forward=mesh.regathers, ignored_params=scalars
            )
    for stage in stages:
        _fill(initial, stage)
    return [
        ParamShard(name, p, *cuts[name], mesh.shards > 1 and p.ndim > 0, device_mesh)
        for name, p in model.named_parameters()
        if name in names
    ]


def _fill(initial: InitialWeights | None, module: nn.Module) -> None:
    if initial is not None:
        initial.fill(module.modules())


def _let_go(layer: nn.Module) -> None:
    """Copy the shards of a layer that are still views of the whole tensor, which would keep its memory."""
    for name, parameter in list(layer.named_parameters(recurse=False)):
        if not isinstance(parameter, DTensor):
            continue
        local = parameter.to_local().detach()
        if local.untyped_storage().nbytes() > local.numel() * local.itemsize:
            part = DTensor.from_local(
                local.clone(),
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
            setattr(layer, name, nn.Parameter(part, requires_grad=parameter.requires_grad))


class _Experts(ParallelStyle):
    """Gives each process some of a module's experts, and the outputs of all experts."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def entering(_: nn.Module, inputs: tuple[Any, ...]) -> Any:
            """Sum the input gradients from the experts of all processes."""
            whole = (DTensor.from_local(x, device_mesh, [Replicate()], run_check=False) for x in inputs)
            return tuple(x.to_local(grad_placements=[Partial()]) for x in whole)

        def leaving(_: nn.Module, inputs: Any, found: Tensor) -> Tensor:
            parts = DTensor.from_local(found, device_mesh, [Shard(1)], run_check=False)
            return parts.redistribute(placements=[Replicate()]).to_local()

        def divide(_: str, inner: nn.Module, mesh: DeviceMesh) -> None:
            for name, parameter in list(inner.named_parameters(recurse=False)):
                part = distribute_tensor(parameter, mesh, [Shard(0)], src_data_rank=None)
                inner.register_parameter(name, nn.Parameter(part, requires_grad=parameter.requires_grad))

        module.register_forward_pre_hook(entering)
        module.register_forward_hook(leaving)
        return distribute_module(module, device_mesh, divide)


def _style(cut: Cut) -> ParallelStyle:
    if cut == "experts":
        return _Experts()
    if cut == "row":
        return RowwiseParallel()
    return ColwiseParallel(output_layouts=Replicate()) if cut == "alone" else ColwiseParallel()


def _tensor_dim(parameter: Tensor) -> int | None:
    if isinstance(parameter, DTensor) and isinstance(placement := parameter.placements[0], Shard):
        return placement.dim
    return None


def units(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules, innermost first, whose weights are gathered on their own."""
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for module in reversed(list(model.modules())):
        parameters = list(module.parameters(recurse=False))
        shared = any(uses[id(p)] > 1 for p in parameters)
        if module is not model and not shared and sum(p.numel() for p in parameters) >= UNIT:
            yield module
