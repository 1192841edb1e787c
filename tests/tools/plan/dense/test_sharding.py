from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from satrap.dense import Mesh
from satrap.settings.mesh import Sharded
from satrap.tools.plan.dense.live import Live
from satrap.tools.plan.dense.sharding import Sharding, shard_bytes


@pytest.mark.parametrize(("sharded", "gathers"), [(True, 2), ("gradients", 1), ("optimizer", 1)])
def test_weights_are_gathered_for_each_pass_and_gradients_reduced_once(
    sharded: Sharded, gathers: int
) -> None:
    live = Live()
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.Linear(256, 4))
        live.know(model.parameters())
        sharding = Sharding(model, Mesh(2, sharded=sharded), live)
        whole = sum(p.numel() * 4 for p in model.parameters())
        assert live.now["parameters"] == whole / 2
        for _ in range(2):
            sharding.gathers = sharding.reduces = 0
            with live:
                sharding.begin()
                loss = model(torch.zeros(8, 256)).sum()
                assert live.now["buffers"] > 0
                sharding.turn()
                loss.backward()
                sharding.end()
            assert (sharding.gathers, sharding.reduces) == (gathers * whole, whole)
            assert live.now["buffers"] == 0
            assert live.now["gradients"] == whole / 2
    assert all(p.grad is None for p in model.parameters())
    largest = 256 * 512 * 4
    assert live.most["buffers"] > largest


def test_over_two_parts_gradients_stay_whole_until_the_last() -> None:
    live = Live()
    with FakeTensorMode():
        model = nn.Linear(256, 512)
        live.know(model.parameters())
        sharding = Sharding(model, Mesh(2, sharded="optimizer"), live)
        whole = sum(p.numel() * 4 for p in model.parameters())
        with live:
            for last in (False, True):
                sharding.begin()
                loss = model(torch.zeros(8, 256)).sum()
                sharding.turn()
                loss.backward()
                assert live.now["gradients"] == whole
                sharding.end(last=last)
    assert sharding.sent(8) == (whole / 2, whole / 2)
    assert live.now["gradients"] == whole / 2


def test_shards_of_a_part_of_the_workers_are_averaged_over_the_others() -> None:
    """Half of what is gathered and reduced is sent, and shards of 200 bytes once to the other half's."""
    with FakeTensorMode():
        sharding = Sharding(nn.Linear(2, 2), Mesh(4, sharded=True, shard_size=2), Live())
    sharding.gathers, sharding.reduces = 800, 400
    assert sharding.sent() == (400, 200 + 200)
    assert sharding.sent(3) == (1200, 1200)


def test_shards_are_as_large_as_the_largest() -> None:
    assert shard_bytes(torch.zeros(7, 3), 2) == 4 * 3 * 4
    assert shard_bytes(torch.zeros(1), 4) == 4
