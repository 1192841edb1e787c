"""Each fused step against torch.optim (or its definition) on dense rows, many steps."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from satrap.optim import FTRL, KINDS, SGD, Adagrad, Adam, AdamW, RowWiseAdagrad
from satrap.schema import Table
from satrap.store import RowChunk, Shard
from satrap.store.kernels.optimizers import TABULATED
from tests.support.examples import examples

DIMS = [1, 7, 11, 16, 17, 64, 100]
ROWS, STEPS = 23, examples(100)


def torch_optimizer(optimizer, weights):
    match optimizer:
        case SGD(lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=decay):
            return torch.optim.SGD([weights], lr, momentum, nesterov=nesterov, weight_decay=decay)
        case Adagrad(lr=lr, eps=eps, initial_accumulator=start, weight_decay=decay):
            return torch.optim.Adagrad(
                [weights], lr=lr, eps=eps, initial_accumulator_value=start, weight_decay=decay
            )
        case Adam(lr=lr, betas=betas, eps=eps, weight_decay=decay):
            return torch.optim.Adam([weights], lr=lr, betas=betas, eps=eps, weight_decay=decay)
        case AdamW(lr=lr, betas=betas, eps=eps, weight_decay=decay):
            return torch.optim.AdamW([weights], lr=lr, betas=betas, eps=eps, weight_decay=decay)


def train(optimizer, dim, gradients, scale=1.0):
    """Return the rows before and after one update per gradient array."""
    shard = Shard([Table("a", dim=dim, initial_scale=scale)], optimizer=optimizer)
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
        SGD(lr=0.01, weight_decay=0.1),
        SGD(lr=0.01, momentum=0.9),
        SGD(lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
        Adagrad(lr=0.01),
        Adagrad(lr=0.01, weight_decay=0.3),
        Adagrad(lr=0.01, eps=1e-3, initial_accumulator=0.1),
        Adam(lr=0.001),
        Adam(lr=0.001, betas=(0.5, 0.9), eps=1e-3),
        Adam(lr=0.001, betas=(0.0, 0.9)),
        Adam(lr=0.001, weight_decay=0.3),
        AdamW(lr=0.001),
        AdamW(lr=0.001, weight_decay=0.5),
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


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("dim", DIMS)
def test_rowwise_adagrad_equals_its_definition(dim, decay):
    optimizer = RowWiseAdagrad(lr=0.01, eps=1e-6, initial_accumulator=0.1, weight_decay=decay)
    gradients = random_gradients(dim)
    weights, after = train(optimizer, dim, gradients)
    expected, accumulator = weights.astype(np.float64), np.full((ROWS, 1), 0.1)
    for gradient in gradients:
        g = gradient + decay * expected
        accumulator += (g * g).mean(axis=1, keepdims=True)
        expected -= 0.01 * g / (np.sqrt(accumulator) + 1e-6)
    assert_equal(after, expected)


def ftrl_of_the_paper(o, gradients, dim, start=None):
    """Algorithm 1 of McMahan et al. 2013, each coordinate by itself, in float64; `start` moves the origin."""
    w = np.zeros((ROWS, dim)) if start is None else start.astype(np.float64)
    z, n = -w * (o.beta / o.lr + o.l2) - np.sign(w) * o.l1, np.zeros((ROWS, dim))
    for gradient in gradients:
        g = gradient.astype(np.float64)
        sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / o.lr
        z += g - sigma * w
        n += g * g
        w = -(z - np.sign(z) * o.l1) / ((o.beta + np.sqrt(n)) / o.lr + o.l2)
        w[np.abs(z) <= o.l1] = 0
    return w


@pytest.mark.parametrize("start", [0.0, 0.5])
@pytest.mark.parametrize("optimizer", [FTRL(lr=0.1), FTRL(lr=0.05, beta=0.1, l1=1.0, l2=2.0)], ids=repr)
@pytest.mark.parametrize("dim", DIMS)
def test_ftrl_equals_the_paper(dim, optimizer, start):
    gradients = random_gradients(dim)
    before, after = train(optimizer, dim, gradients, scale=start)
    expected = ftrl_of_the_paper(optimizer, gradients, dim, before)
    np.testing.assert_allclose(after, expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(after == 0, expected == 0)
    assert dim < 64 or (after == 0).any() == (optimizer.l1 > 0)


def test_ftrl_without_penalties_is_adagrad_with_beta_in_the_root():
    """McMahan et al., section 3.1: then FTRL is online gradient descent with the same rates."""
    gradients = random_gradients(8, steps=50)
    before, after = train(FTRL(lr=0.1, beta=1e-30), 8, gradients)
    assert_close = np.testing.assert_allclose
    assert_close(after, train(Adagrad(lr=0.1), 8, gradients)[1], rtol=1e-4, atol=1e-5)
    assert np.abs(after - before).max() > 0.1


ALL = [
    SGD(lr=0.5),
    SGD(lr=0.5, momentum=0.9),
    Adagrad(lr=0.5),
    RowWiseAdagrad(lr=0.5),
    Adam(lr=0.5),
    AdamW(lr=0.5, weight_decay=0),
    FTRL(lr=0.5, l1=0.1, l2=0.1),
]


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
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


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_lr_scale_scales_the_rate(optimizer):
    half = replace(optimizer, lr=optimizer.lr / 2)
    ids = np.arange(ROWS, dtype=np.uint64)
    scaled, plain = (Shard([Table("a", dim=6)], optimizer=o) for o in (optimizer, half))
    for shard in (scaled, plain):
        shard.lookup("a", ids)
    for gradient in random_gradients(6, steps=5):
        scaled.update("a", ids, gradient, lr_scale=0.5)
        plain.update("a", ids, gradient)
    np.testing.assert_allclose(scaled.lookup("a", ids), plain.lookup("a", ids), rtol=1e-6)


@pytest.mark.parametrize("optimizer", [Adam(lr=0.01), AdamW(lr=0.01, weight_decay=0.1)], ids=repr)
def test_adam_beyond_its_table_of_corrections(optimizer):
    """The row's 4095th, 4096th, 4097th ... step is corrected as the ones before; it has made 4075."""
    ids, before = np.arange(ROWS, dtype=np.uint64), np.linspace(-1, 1, ROWS, dtype=np.float32)[:, None]
    made = TABULATED - 20
    state = np.tile(np.array([0, 0, made], np.float32), (ROWS, 1))
    shard = Shard([Table("a", dim=1)], optimizer=optimizer)
    shard.load("a", RowChunk("a", ids, before, state))
    weights = torch.nn.Parameter(torch.from_numpy(before.astype(np.float64)))
    reference = torch_optimizer(optimizer, weights)
    moments = {name: torch.zeros_like(weights) for name in ("exp_avg", "exp_avg_sq")}
    reference.state[weights] = {"step": torch.tensor(float(made)), **moments}
    for gradient in random_gradients(1, steps=40):
        shard.update("a", ids, gradient)
        weights.grad = torch.from_numpy(gradient.astype(np.float64))
        reference.step()
    [after] = shard.export("a")
    assert set(after.state[:, -1].tolist()) == {TABULATED + 20}
    np.testing.assert_allclose(shard.peek("a", ids)[0], weights.detach().numpy(), atol=1e-4)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_duplicates_take_one_step_with_their_sum(optimizer):
    apart, summed = (Shard([Table("a", dim=18)], optimizer=optimizer) for _ in range(2))
    ids = np.array([5, 9, 5, 5], np.uint64)
    gradients = np.arange(72, dtype=np.float32).reshape(4, 18)
    for shard in (apart, summed):
        shard.lookup("a", ids)
    for _ in range(3):
        apart.update("a", ids, gradients)
        summed.update("a", ids[:2], np.stack([gradients[[0, 2, 3]].sum(axis=0), gradients[1]]))
    np.testing.assert_array_equal(apart.peek("a", ids)[0], summed.peek("a", ids)[0])


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
@pytest.mark.parametrize("dim", [3, 16, 21])
def test_clip_shortens_the_gradient_of_each_row(optimizer, dim):
    """As torch.nn.utils.clip_grad_norm_ of that row alone; a shorter gradient stays as it is."""
    gradients = random_gradients(dim, steps=20)
    norms = [np.linalg.norm(g.astype(np.float64), axis=1, keepdims=True) for g in gradients]
    clip = float(np.median(norms))
    short = [(g * np.minimum(1, clip / n)).astype(np.float32) for g, n in zip(gradients, norms, strict=True)]
    _, after = train(replace(optimizer, clip=clip), dim, gradients)
    np.testing.assert_allclose(after, train(optimizer, dim, short)[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e25, 3e38])
def test_clip_holds_where_squares_leave_float32(scale):
    gradient = np.zeros((ROWS, 18), np.float32)
    gradient[:, [2, 17]] = scale
    before, after = train(SGD(lr=1.0, clip=1e-33), 18, [gradient])
    np.testing.assert_array_equal(before, after)
    before, after = train(SGD(lr=1.0, clip=1.0), 18, [gradient], scale=0.0)
    np.testing.assert_allclose(-after[:, [2, 17]], min(scale, 0.5**0.5), rtol=1e-6)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_bound_holds_weights_inside(optimizer):
    shard = Shard([Table("a", dim=18)], optimizer=replace(optimizer, bound=0.02))
    ids = np.arange(ROWS, dtype=np.uint64)
    shard.lookup("a", ids)
    for gradient in random_gradients(18, steps=10, scale=10.0):
        shard.update("a", ids, gradient)
        rows = shard.peek("a", ids)[0]
        assert np.abs(rows).max() <= np.float32(0.02)
    assert (np.abs(rows) == np.float32(0.02)).mean() > 0.1


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e18, 1e30, 3e38])
def test_extreme_gradients_leave_rows_finite(optimizer, size):
    """Squares that overflow stop a row (as in PyTorch) instead of making it infinite or NaN."""
    gradients = [np.full((ROWS, 17), sign * size, np.float32) for sign in (1, -1, 1)]
    bounded = replace(optimizer, bound=10.0)
    _, after = train(bounded, 17, [*gradients, *random_gradients(17, steps=3)])
    assert np.isfinite(after).all()


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e10, 1e19, 1e30])
@pytest.mark.parametrize("optimizer", [Adagrad(lr=0.1), Adam(lr=0.1)], ids=repr)
def test_extreme_gradients_equal_torch(optimizer, size):
    gradients = [size * g for g in random_gradients(17, steps=5)]
    before, after = train(optimizer, 17, gradients)
    weights = torch.nn.Parameter(torch.from_numpy(before.copy()))
    reference = torch_optimizer(optimizer, weights)
    for gradient in gradients:
        weights.grad = torch.from_numpy(gradient)
        reference.step()
    np.testing.assert_allclose(after, weights.detach().numpy(), rtol=2e-5, atol=2e-6)


def arguments():
    """Every argument of every optimizer with a value that is not its default."""
    other = {"clip": 0.1, "bound": 0.05, "momentum": 0.5, "nesterov": True, "weight_decay": 0.3, "eps": 0.5}
    other |= {"initial_accumulator": 3.0, "betas": (0.2, 0.3), "beta": 0.3, "l1": 0.5, "l2": 3.0}
    for kind in KINDS:
        for field in fields(kind):
            if field.name != "lr":
                yield pytest.param(kind, field.name, other[field.name], id=f"{kind.name}-{field.name}")


@pytest.mark.parametrize(("kind", "name", "value"), list(arguments()))
def test_no_argument_is_without_effect(kind, name, value):
    """PERSIA accepted momentum and weight decay and ignored them."""
    base = {"momentum": 0.5} if name == "nesterov" else {}
    gradients = random_gradients(5, steps=4)
    without, given = (train(kind(lr=0.1, **base, **extra), 5, gradients)[1] for extra in ({}, {name: value}))
    assert np.abs(without - given).max() > 1e-3
