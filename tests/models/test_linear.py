"""The linear layer by oneDNN: values and gradients against float64, and when PyTorch's own is used."""

import pytest
import torch
from torch import nn

from satrap.models import linear
from satrap.models.linear import Linear

needs_onednn = pytest.mark.skipif(linear._onednn is None, reason="this PyTorch has no oneDNN")


def gradients(layer: nn.Linear, x: torch.Tensor, upstream: torch.Tensor) -> list[torch.Tensor]:
    layer.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    y.backward(upstream)
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("size", "width", "out"), [(4096, 429, 8), (700, 300, 128), (4099, 13, 64)])
def test_values_and_gradients_equal_those_in_float64(monkeypatch, size, width, out, bias):
    torch.manual_seed(0)
    layer = Linear(width, out, bias=bias)
    called = []
    monkeypatch.setattr(linear, "_product", lambda *a, plain=linear._product: called.append(1) or plain(*a))
    x, upstream = torch.randn(size, width), torch.randn(size, out)
    found = gradients(layer, x, upstream)
    assert len(called) == 3  # forward, gradient of x, gradient of the weights
    exact = nn.Linear(width, out, bias=bias, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    for mine, right in zip(found, gradients(exact, x.double(), upstream.double()), strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-4, atol=1e-4 * float(right.abs().max()))


@needs_onednn
def test_a_gradient_of_the_gradient_is_right():
    torch.manual_seed(0)
    layer, plain = Linear(64, 64), nn.Linear(64, 64)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(512, 64, requires_grad=True)
    penalties = []
    for each in (layer, plain):
        [slope] = torch.autograd.grad(each(x).square().sum(), x, create_graph=True)
        penalties.append(torch.autograd.grad(slope.square().sum(), each.weight)[0])
    torch.testing.assert_close(*penalties, rtol=1e-4, atol=1e-2)


def test_small_other_and_compiled_inputs_take_pytorchs_way(monkeypatch):
    monkeypatch.setattr(linear, "_product", lambda *_: pytest.fail("not for these"))
    Linear(8, 8)(torch.randn(4, 8))
    Linear(64, 64)(torch.randn(8, 64, 64))
    Linear(64, 64).double()(torch.randn(512, 64, dtype=torch.float64))
    with torch.autocast("cpu", torch.bfloat16):
        assert Linear(64, 64)(torch.randn(512, 64)).dtype == torch.bfloat16


@needs_onednn
def test_nothing_is_computed_for_inputs_without_gradient():
    layer = Linear(64, 64)
    layer.weight.requires_grad_(False)
    x = torch.randn(512, 64)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
