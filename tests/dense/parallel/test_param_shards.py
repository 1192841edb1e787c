"""The parts of all processes make up the network; processes that only one of them plays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule

from satrap.dense import Mesh
from satrap.dense.parallel.param_shards import UNIT, ParamShard, shard_model
from satrap.dense.parallel.tensor_plan import tensor_plan
from satrap.models.multitask.experts import Experts
from tests.dense.fake_group import playing


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stack = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 7))
        self.wide, self.scale = nn.Linear(7, UNIT // 4, bias=False), nn.Parameter(torch.tensor(2.0))
        self.tied = nn.Linear(7, UNIT // 4, bias=False)
        self.tied.weight = self.wide.weight
        self.large = nn.Linear(UNIT // 4, 4)


def of_experts() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Experts(4, 5, [6, 3], dropout=0.0, batch_norm=False), nn.Linear(3, 1))


def pieces_of(
    rank: int, mesh: Mesh, make: Callable[[], nn.Module] = Network
) -> tuple[nn.Module, list[ParamShard]]:
    shape = (mesh.data // mesh.shards, mesh.shards, mesh.tensor)
    model = make()
    device_mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard", "tensor"))
    return model, shard_model(model, mesh, device_mesh, tensor_plan(model, mesh.tensor))


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


@pytest.mark.parametrize("mesh", [Mesh(1, 2), Mesh(1, 4), Mesh(2, 2, True)], ids=str)
def test_each_process_of_a_tensor_group_has_whole_experts(mesh: Mesh) -> None:
    whole = dict(of_experts().named_parameters())
    for rank in range(mesh.tensor):
        with playing(rank, mesh.size):
            model, pieces = pieces_of(rank, mesh, of_experts)
            each = 4 // mesh.tensor
            for piece in pieces[:4]:
                own = whole[piece.name].unflatten(0, (4, -1))[rank * each : (rank + 1) * each].flatten(0, 1)
                rows = own.chunk(mesh.shards)[0]
                torch.testing.assert_close(piece.local, rows.detach(), rtol=0, atol=0)
                assert piece.tensor_dim == 0
            if not mesh.sharded:
                found = model[0].layers([torch.ones(2, 5)])
                expected = of_experts()[0](torch.ones(2, 5))[:, rank * each : (rank + 1) * each]
                torch.testing.assert_close(torch.stack(found, 1), expected)
