"""The linear layer by oneDNN: values and gradients against float64, and when PyTorch's own is used."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from satrap.batch import Shared, with_shared
from satrap.models.layers import linear
from satrap.models.layers.linear import Linear

needs_onednn = pytest.mark.skipif(linear._onednn is None, reason="this PyTorch has no oneDNN")


def gradients(layer: nn.Linear, x: torch.Tensor, upstream: torch.Tensor) -> list[torch.Tensor]:
    layer.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    y.backward(upstream)
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("intel", [True, False])
@pytest.mark.parametrize(("size", "width", "out"), [(4096, 429, 8), (700, 300, 128), (4099, 13, 64)])
def test_values_and_gradients_equal_those_in_float64(monkeypatch, size, width, out, intel, bias):
    torch.manual_seed(0)
    monkeypatch.setattr(linear, "_INTEL", intel)
    layer = Linear(width, out, bias=bias)
    called = []
    monkeypatch.setattr(linear, "_product", lambda *a, plain=linear._product: called.append(1) or plain(*a))
    x, upstream = torch.randn(size, width), torch.randn(size, out)
    found = gradients(layer, x, upstream)
    assert len(called) == (1 if intel else 3)  # forward, gradient of x, gradient of the weights
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


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("counts", [[200], [50, 1, 149]])
def test_a_packed_layer_multiplies_shared_columns_once(bias, counts):
    """Against float64; also once the weights have changed, when it computes as before."""
    layer, columns = nn.Sequential(nn.Linear(96, 64, bias=bias)), torch.rand(96) < 0.6
    exact = nn.Linear(96, 64, bias=bias, dtype=torch.float64)
    linear.pack(layer)
    assert type(layer[0]) is Linear
    run = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    x, runs = torch.randn(200, 96), torch.randn(len(counts), 96)
    x[:, columns] = runs[run][:, columns]
    shared = Shared(columns.numpy(), runs[:, columns].contiguous(), run, x[:, ~columns].contiguous())
    for _ in range(2):
        exact.load_state_dict(layer[0].state_dict())
        with torch.inference_mode():
            layer(with_shared(x, shared))  # the first time, the columns are not prepared
            found = layer(x)
            assert len(layer[0].packed.splits) == 1
            torch.testing.assert_close(found, exact(x.double()).float(), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(layer(x[:]), exact(x.double()).float(), rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            layer[0].weight.mul_(2)


def test_columns_are_shared_only_until_the_input_changes():
    layer, x = nn.Sequential(Linear(64, 64)), torch.randn(400, 64)
    x[:, :32] = x[0, :32]
    linear.pack(layer)
    columns = torch.arange(64) < 32
    shared = Shared(
        columns.numpy(), x[:1, :32].clone(), torch.zeros(400, dtype=torch.long), x[:, 32:].clone()
    )
    with torch.inference_mode():
        with_shared(x, shared)
        x.mul_(3)
        torch.testing.assert_close(
            layer(x), nn.functional.linear(x, layer[0].weight, layer[0].bias), rtol=1e-5, atol=1e-4
        )


@needs_onednn
def test_a_copy_is_not_packed_and_gradients_are_not_touched():
    layer, x = nn.Sequential(Linear(64, 64)), torch.randn(400, 64)
    linear.pack(layer)
    assert layer[0].packed is not None
    assert deepcopy(layer)[0].packed is None
    layer(x).sum().backward()
    torch.testing.assert_close(layer[0].weight.grad, x.sum(0).expand(64, 64), rtol=1e-4, atol=1e-4)


@needs_onednn
def test_columns_that_are_asked_for_once_are_not_prepared():
    """Clients decide which columns are shared."""
    layer, x = nn.Sequential(Linear(64, 64)), torch.randn(400, 64)
    linear.pack(layer)
    with torch.inference_mode():
        for count in [*range(1, 20), 40, 40, 40]:
            columns = torch.arange(64) < count
            x[:, columns] = x[0, columns]
            shared = Shared(
                columns.numpy(),
                x[:1, columns].clone(),
                torch.zeros(400, dtype=torch.long),
                x[:, ~columns].clone(),
            )
            layer(with_shared(x, shared))
            assert len(layer[0].packed.splits) <= (1 if count < 40 else 2)
    other = nn.Sequential(Linear(64, 64))
    linear.pack(other, like=layer)
    assert other[0].packed.splits.keys() == layer[0].packed.splits.keys()
