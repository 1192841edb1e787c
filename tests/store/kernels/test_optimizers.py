"""Each fused step against torch.optim (or its definition) on dense rows, many steps."""

import numpy as np
import pytest
import torch

from satrap.optim import SGD, Adagrad, Adam, RowWiseAdagrad
from satrap.schema import Table
from satrap.store import Shard

DIMS = [1, 7, 11, 16, 17, 64, 100]
ROWS, STEPS = 23, 100


def torch_optimizer(optimizer, weights):
    match optimizer:
        case SGD(lr=lr):
            return torch.optim.SGD([weights], lr=lr)
        case Adagrad(lr=lr, eps=eps, initial_accumulator=start):
            return torch.optim.Adagrad([weights], lr=lr, eps=eps, initial_accumulator_value=start)
        case Adam(lr=lr, betas=betas, eps=eps):
            return torch.optim.Adam([weights], lr=lr, betas=betas, eps=eps)


def train(optimizer, dim, gradients):
    """Return the rows before and after one update per gradient array."""
    shard = Shard([Table("a", dim=dim, initial_scale=1.0)], optimizer=optimizer)
    ids = np.arange(ROWS, dtype=np.uint64)
    before = shard.lookup("a", ids)
    for gradient in gradients:
        shard.update("a", ids, gradient)
    return before, shard.lookup("a", ids)


def random_gradients(dim, steps=STEPS, scale=1.0):
    rng = np.random.default_rng(dim)
    return [(scale * rng.standard_normal((ROWS, dim))).astype(np.float32) for _ in range(steps)]


def assert_equal(found, expected):
    """Equal to 1e-6 of the size of a weight."""
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(lr=0.01),
        Adagrad(lr=0.01),
        Adagrad(lr=0.01, eps=1e-3, initial_accumulator=0.1),
        Adam(lr=0.001),
        Adam(lr=0.001, betas=(0.5, 0.9), eps=1e-3),
        Adam(lr=0.001, betas=(0.0, 0.9)),
    ],
    ids=repr,
)
def test_equals_torch(optimizer, dim):
    gradients = random_gradients(dim)
    before, after = train(optimizer, dim, gradients)
    weights = torch.nn.Parameter(torch.from_numpy(before.copy()))
    reference = torch_optimizer(optimizer, weights)
    for gradient in gradients:
        weights.grad = torch.from_numpy(gradient)
        reference.step()
    assert_equal(after, weights.detach().numpy())


@pytest.mark.parametrize("dim", DIMS)
def test_rowwise_adagrad_equals_its_definition(dim):
    optimizer = RowWiseAdagrad(lr=0.01, eps=1e-6, initial_accumulator=0.1)
    gradients = random_gradients(dim)
    weights, after = train(optimizer, dim, gradients)
    expected, accumulator = weights.astype(np.float64), np.full((ROWS, 1), 0.1)
    for gradient in gradients:
        g = gradient.astype(np.float64)
        accumulator += (g * g).mean(axis=1, keepdims=True)
        expected -= 0.01 * g / (np.sqrt(accumulator) + 1e-6)
    assert_equal(after, expected)


@pytest.mark.parametrize("optimizer", [SGD(lr=1), Adagrad(lr=1), RowWiseAdagrad(lr=1), Adam(lr=1)], ids=repr)
def test_zero_gradients_change_nothing(optimizer):
    before, after = train(optimizer, 17, [np.zeros((ROWS, 17), np.float32)] * 3)
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("optimizer", [Adagrad(lr=0.1), RowWiseAdagrad(lr=0.1), Adam(lr=0.1)], ids=repr)
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_first_step_has_the_size_of_the_rate(optimizer, scale):
    """All three divide by the gradient's own size: the first step is lr times its sign (eps aside)."""
    gradient = np.full((ROWS, 16), scale, np.float32)
    before, after = train(optimizer, 16, [gradient])
    eps = optimizer.eps / scale
    np.testing.assert_allclose(before - after, 0.1 / (1 + eps), rtol=1e-4, atol=1.2e-7)


def test_adam_counts_steps_by_row():
    """A row touched every third time equals torch.optim.Adam that saw only those gradients."""
    gradients = random_gradients(5, steps=30)
    shard = Shard([Table("a", dim=5)], optimizer=Adam(lr=0.01))
    ids = np.arange(ROWS, dtype=np.uint64)
    rows = shard.lookup("a", ids)
    weights = torch.nn.Parameter(torch.from_numpy(rows[:1].copy()))
    reference = torch.optim.Adam([weights], lr=0.01)
    for i, gradient in enumerate(gradients):
        first = 0 if i % 3 == 0 else 1
        shard.update("a", ids[first:], gradient[first:])
        if first == 0:
            weights.grad = torch.from_numpy(gradient[:1])
            reference.step()
    assert_equal(shard.lookup("a", ids[:1]), weights.detach().numpy())


@pytest.mark.parametrize(
    "optimizer", [SGD(lr=0.1), Adagrad(lr=0.1), RowWiseAdagrad(lr=0.1), Adam(lr=0.1)], ids=repr
)
def test_lr_scale_scales_the_rate(optimizer):
    half = type(optimizer)(lr=0.05)
    ids = np.arange(ROWS, dtype=np.uint64)
    scaled, plain = (Shard([Table("a", dim=6)], optimizer=o) for o in (optimizer, half))
    for shard in (scaled, plain):
        shard.lookup("a", ids)
    for gradient in random_gradients(6, steps=5):
        scaled.update("a", ids, gradient, lr_scale=0.5)
        plain.update("a", ids, gradient)
    np.testing.assert_allclose(scaled.lookup("a", ids), plain.lookup("a", ids), rtol=1e-6)
