from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from satrap.tools.plan.dense.live import Live
from tests.tools.plan.dense.measured import NoModules


def stack() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 8), nn.GELU())


def test_fake_tensors_are_counted_as_pytorch_counts_real_ones() -> None:
    tracker = MemTracker()
    tracker._mod_tracker = NoModules()
    with tracker:
        stack()(torch.zeros(128, 32)).sum().backward()
    measured = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    live = Live()
    with FakeTensorMode(), live:
        stack()(torch.zeros(128, 32)).sum().backward()
    assert sum(live.most.values()) == measured > 128 * 64 * 4


def test_kinds_holds_and_what_is_known() -> None:
    live = Live()
    weight = nn.Parameter(torch.zeros(10))
    live.know([weight])
    live.follow(weight)
    with live:
        (weight * 2).sum().backward()
        view = weight.detach()[:5]
    assert live.now["gradients"] == 40
    assert view.numel() == 5  # a view of what is known takes nothing
    live.hold("buffers", 1000)
    live.hold("buffers", -1000)
    assert live.most["buffers"] == 1000
    assert live.most["gradients"] == 40
    weight.grad = None
    assert live.now["gradients"] == 0
    live.begin(5000)
    assert (live.most["parameters"], live.now["parameters"]) == (5000, 0)
