"""Spreads a network over a mesh by PyTorch's own means, and says which part of it a process has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from satrap.dense.mesh import Mesh
from satrap.dense.tensor_plan import Cut, tensor_plan

UNIT = 1 << 16
"""Parameters from which a layer's weights are gathered by themselves, and not with those of its parent."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of one parameter that this process has.

    Args:
        name: the parameter's, in the network.
        parameter: as the wrapped network has it.
        tensor_dim: the dimension that the tensor group divides; None: each process of it has all.
        shape: of what this tensor coordinate has, before its rows are divided.
        sharded: whether its rows are divided among the processes of the shard group.
        mesh: of the network; None if nothing is divided.
    """

    name: str
    parameter: nn.Parameter
    tensor_dim: int | None
    shape: torch.Size
    sharded: bool
    mesh: DeviceMesh | None

    @property
    def local(self) -> Tensor:
        """The numbers that this process has, sharing memory with the parameter."""
        return _local(self.parameter.detach())

    @property
    def gradient(self) -> Tensor | None:
        """The gradient of `local`."""
        return None if self.parameter.grad is None else _local(self.parameter.grad)

    def gather(self, local: Tensor) -> Tensor:
        """Return the whole of something that has the shape of `local`; all processes call it."""
        if self.sharded:
            assert self.mesh is not None
            local = _join(local, self.mesh["shard"], 0, self.shape)
        if self.tensor_dim is not None:
            assert self.mesh is not None
            mesh, dim = self.mesh["tensor"], self.tensor_dim
            whole = list(self.shape)
            whole[dim] *= mesh.size()
            local = _join(local, mesh, dim, torch.Size(whole))
        return local

    def cut(self, whole: Tensor) -> Tensor:
        """Return this process's part of something that has the shape of the whole parameter."""
        if self.tensor_dim is not None:
            whole = self._part(whole, "tensor", self.tensor_dim)
        return self._part(whole, "shard", 0) if self.sharded else whole

    def cut_state(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """Return this process's part of the optimizer state of the parameter, with tensors copied."""
        return {
            key: self.cut(value).clone()
            if isinstance(value, Tensor) and value.shape == self.parameter.shape
            else value
            for key, value in whole.items()
        }

    def _part(self, whole: Tensor, axis: str, dim: int) -> Tensor:
        assert self.mesh is not None
        mesh = self.mesh[axis]
        parts, rank = torch.chunk(whole, mesh.size(), dim), mesh.get_local_rank()
        return parts[rank] if rank < len(parts) else whole.narrow(dim, 0, 0)


def _local(tensor: Any) -> Tensor:
    found: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return found


def _join(part: Tensor, mesh: DeviceMesh, dim: int, shape: torch.Size) -> Tensor:
    """Return what the parts of all processes of a dimension of the mesh make up; they may be uneven."""
    stride = torch.empty(shape, device="meta").stride()
    joined = DTensor.from_local(
        part.contiguous(), mesh, [Shard(dim)], run_check=False, shape=shape, stride=stride
    )
    return joined.full_tensor()


def spread(model: nn.Module, mesh: Mesh, device_mesh: DeviceMesh) -> list[Piece]:
    """Divide a network in place, and return its pieces, one per parameter in the order of `parameters`.

    The processes of a tensor group divide linear layers as `tensor_plan` says; `parallelize_module` does it.
    Then `fully_shard` divides weights by their rows, if the mesh is sharded. Weights must be equal on all
    processes before: nothing here makes them so.
    """
    plan = tensor_plan(model, mesh.tensor)
    if plan:
        styles = {name: _style(cut) for name, cut in plan.items()}
        parallelize_module(model, device_mesh["tensor"], styles, src_data_rank=None)
    cuts = {name: (_tensor_dim(p), _local(p.detach()).shape) for name, p in model.named_parameters()}
    scalars = {p for p in model.parameters() if p.ndim == 0}
    if mesh.shards > 1:
        dims = ("replicate", "shard") if mesh.data > mesh.shards else "shard"
        again = mesh.sharded is True
        for unit in [*units(model), model]:
            fully_shard(unit, mesh=device_mesh[dims], reshard_after_forward=again, ignored_params=scalars)
    return [
        Piece(name, p, *cuts[name], mesh.shards > 1 and p.ndim > 0, device_mesh)
        for name, p in model.named_parameters()
    ]


def spread_stage(
    model: nn.Module, plan: Mapping[str, Cut], names: Set[str], device_mesh: DeviceMesh | None
) -> list[Piece]:
    """Divide the layers of a stage in place, and return its pieces, in the order of `parameters`.

    Args:
        model: the network, with equal weights on all processes.
        plan: how layers are cut; those of other stages stay as they are.
        names: of the stage's parameters and buffers.
        device_mesh: has the dimension tensor; None: nothing is cut.
    """
    if device_mesh is not None:
        styles = {name: _style(cut) for name, cut in plan.items() if f"{name}.weight" in names}
        parallelize_module(model, device_mesh["tensor"], styles, src_data_rank=None)
    return [
        Piece(name, p, _tensor_dim(p), _local(p.detach()).shape, False, device_mesh)
        for name, p in model.named_parameters()
        if name in names
    ]


def _style(cut: Cut) -> ParallelStyle:
    if cut == "row":
        return RowwiseParallel()
    return ColwiseParallel(output_layouts=Replicate()) if cut == "alone" else ColwiseParallel()


def _tensor_dim(parameter: Tensor) -> int | None:
    if isinstance(parameter, DTensor) and isinstance(placement := parameter.placements[0], Shard):
        return placement.dim
    return None


def units(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules, innermost first, whose weights are gathered together and by themselves."""
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for module in reversed(list(model.modules())):
        own = list(module.parameters(recurse=False))
        shared = any(uses[id(p)] > 1 for p in own)
        if module is not model and not shared and sum(p.numel() for p in own) >= UNIT:
            yield module
