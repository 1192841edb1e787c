"""The parts of all processes make up the network; processes that only one of them plays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore

from satrap.dense import Mesh
from satrap.dense.pieces import UNIT, Piece, spread
from satrap.dense.tensor_plan import tensor_plan


@contextmanager
def playing(rank: int, size: int) -> Iterator[None]:
    """This process is one of several; collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stack = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 7))
        self.wide, self.scale = nn.Linear(7, UNIT // 4, bias=False), nn.Parameter(torch.tensor(2.0))
        self.tied = nn.Linear(7, UNIT // 4, bias=False)
        self.tied.weight = self.wide.weight
        self.large = nn.Linear(UNIT // 4, 4)


def pieces_of(rank: int, mesh: Mesh) -> tuple[nn.Module, list[Piece]]:
    shape = (mesh.data // mesh.shards, mesh.shards, mesh.tensor)
    model = Network()
    device_mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard", "tensor"))
    return model, spread(model, mesh, device_mesh, tensor_plan(model, mesh.tensor))


MESHES = [Mesh(4, sharded=True), Mesh(4, 1, "gradients", 2), Mesh(1, 4), Mesh(2, 2), Mesh(2, 2, True)]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_parts_make_up_the_network(mesh: Mesh) -> None:
    whole, found = dict(Network().named_parameters()), list[dict[str, Tensor]]()
    written = dict.fromkeys(whole, 0)
    for rank in range(mesh.size):
        with playing(rank, mesh.size):
            _, pieces = pieces_of(rank, mesh)
            assert [piece.name for piece in pieces] == list(whole)
            found.append({piece.name: piece.local.clone() for piece in pieces})
            for piece in pieces:
                written[piece.name] += piece.local.numel() if piece.first else 0
                torch.testing.assert_close(piece.cut(whole[piece.name].detach()), piece.local, rtol=0, atol=0)
    assert written == {name: tensor.numel() for name, tensor in whole.items()}
    dims = {piece.name: (piece.tensor_dim, piece.sharded) for piece in pieces}
    for name, tensor in whole.items():
        dim, sharded = dims[name]
        for rank in range(mesh.size):
            axes = mesh.axes(rank)
            columns = []
            for peer in axes["tensor"] if dim is not None else [rank]:
                rows = mesh.axes(peer)["shard"] if sharded else [peer]
                columns.append(
                    torch.cat([found[one][name] for one in rows]) if sharded else found[peer][name]
                )
            joined = columns[0] if dim is None else torch.cat(columns, dim)
            torch.testing.assert_close(joined, tensor.detach(), rtol=0, atol=0)
    kept = [sum(t.numel() for t in each.values()) for each in found]
    if mesh.sharded:
        assert max(kept) < sum(p.numel() for p in whole.values()) * 0.6
    assert dims["stack.0.weight"][0] == (0 if mesh.tensor > 1 else None)
    assert dims["stack.2.weight"][0] == (1 if mesh.tensor > 1 else None)
    assert dims["scale"] == (None, False)


def test_large_layers_are_gathered_by_themselves_unless_they_share_a_weight() -> None:
    with playing(0, 2):
        model, _ = pieces_of(0, Mesh(2, sharded=True))
        units = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
        assert units == ["", "large"]
