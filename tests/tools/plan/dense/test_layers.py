from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from satrap.dense.parallel.tensor_plan import Cut
from satrap.models.multitask.experts import Experts
from satrap.tools.plan.dense.layers import cut_layers


def test_a_pair_has_half_of_each_layer_and_two_sums() -> None:
    sent = list[int]()
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        cut_layers(model, {"0": "column", "2": "row"}, 2, sent.append)
        x = torch.zeros(3, 6, requires_grad=True)
        found = model(x)
        assert found.shape == (3, 4)
        found.sum().backward()
    assert [tuple(p.shape) for p in model.parameters()] == [(4, 6), (4,), (4, 4), (4,)]
    assert sent == [3 * 4 * 4, 3 * 6 * 4]  # outputs of the row, gradients of what enters the column


def test_a_layer_alone_gathers_its_outputs() -> None:
    sent, plan = list[int](), dict[str, Cut]({"0": "alone"})
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(6, 8, bias=False))
        cut_layers(model, plan, 4, sent.append)
        found = model(torch.zeros(3, 6))
        assert found.shape == (3, 8)
        found.sum().backward()
    assert model[0].weight.grad is not None
    assert model[0].weight.grad.shape == (2, 6)
    assert sent == [3 * 8 * 4 // 2]  # a sum sends twice what gathering does


def test_experts_enter_once_and_are_gathered_once() -> None:
    sent, plan = list[int](), dict[str, Cut]({"0": "experts"})
    with FakeTensorMode():
        model = nn.Sequential(Experts(4, 6, [10, 8], dropout=0.0, batch_norm=False))
        cut_layers(model, plan, 2, sent.append)
        found = model(torch.zeros(3, 6, requires_grad=True))
        assert found.shape == (3, 4, 8)
        found.sum().backward()
    assert [tuple(p.shape) for p in model.parameters()] == [(20, 6), (20,), (16, 10), (16,)]
    assert sent == [3 * 4 * 8 * 4 // 2, 3 * 6 * 4]
