"""ESMM against probabilities multiplied in float64, where they can be, and at logits where they cannot."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy, binary_cross_entropy_with_logits

from satrap.errors import ConfigError
from satrap.models import ESMM
from satrap.schema import Label
from tests.models.helpers import make_batch, make_schema

LABELS = ("click", "bought")


def of_logits(a, b):
    """Return the outputs of a model whose towers return the logits a and b, and the logits."""
    model = ESMM(make_schema(labels=LABELS))
    logits = torch.stack([torch.as_tensor(x) for x in (a, b)], dim=1).requires_grad_()
    model.towers.forward = lambda inputs: logits
    return model(make_batch(model, make_schema(labels=LABELS))), logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_second_logit_is_that_of_the_product(dtype):
    values = [-30.0, -9.0, -1.5, 0.0, 0.3, 4.0, 25.0]
    a, b = np.array([*itertools.product(values, values)]).T
    found, logits = of_logits(torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype))
    log_p = -np.logaddexp(0, -a) - np.logaddexp(0, -b)
    rest = -np.expm1(log_p)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    assert torch.equal(found[:, 0], logits[:, 0])
    np.testing.assert_allclose(found[:, 1].detach(), log_p - np.log(rest), rtol=tolerance, atol=tolerance)
    found[:, 1].sum().backward()
    for gradient, x in zip(logits.grad.T, (a, b), strict=True):  # d logit = d log p / (1 - p)
        np.testing.assert_allclose(gradient, 1 / (1 + np.exp(x)) / rest, rtol=10 * tolerance)


def test_no_logit_is_too_large():
    a = torch.tensor([1e4, 1e4, -1e4, -1e4, 3e7, 200.0])
    b = torch.tensor([1e4, -1e4, 1e4, -1e4, 3e7, 100.0])
    found, logits = of_logits(a, b)
    expected = torch.tensor([1e4 - np.log(2), -1e4, -1e4, -2e4, 3e7, 100.0])
    torch.testing.assert_close(found[:, 1].detach(), expected.float())
    binary_cross_entropy_with_logits(found, 1 - (found > 0).float()).backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[:, 0] != 0).all()


def test_the_loss_is_that_of_clicks_and_of_products_over_all_impressions():
    torch.manual_seed(0)
    schema = make_schema(labels=LABELS)
    model = ESMM(schema, hidden=[7]).double()
    batch = make_batch(model, schema, size=40)
    batch.embeddings = {k: v.detach().double() for k, v in batch.embeddings.items()}
    batch.numeric = batch.numeric.double()
    clicked = (torch.rand(40) < 0.5).double()
    y = torch.stack([clicked, clicked * (torch.rand(40) < 0.5)], dim=1)
    ours = torch.autograd.grad(binary_cross_entropy_with_logits(model(batch), y), list(model.parameters()))
    w, x, p = dict(model.named_parameters()), batch.flat(), []
    for k in range(2):
        inner = torch.relu(x @ w[f"towers.towers.{k}.0.weight"].T + w[f"towers.towers.{k}.0.bias"])
        p.append(torch.sigmoid(inner @ w[f"towers.towers.{k}.2.weight"][0] + w[f"towers.towers.{k}.2.bias"]))
    loss = binary_cross_entropy(torch.stack([p[0], p[0] * p[1]], dim=1), y)
    for mine, plain in zip(ours, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(mine, plain)


def test_it_starts_at_both_means():
    schema = make_schema(labels=[Label(name="click", mean=0.2), Label(name="bought", mean=0.01)])
    model = ESMM(schema)
    probabilities = torch.sigmoid(model(make_batch(model, schema)))
    torch.testing.assert_close(probabilities, torch.tensor([[0.2, 0.01]]).expand(6, 2))
    equal = make_schema(labels=[Label(name=name, mean=0.2) for name in LABELS])
    assert ESMM(equal)(make_batch(model, equal)).isfinite().all()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("click",), r"needs two binary labels, .* the schema has click \(binary\)"),
        (("a", "b", "c"), "needs two binary labels"),
        (("a", Label(name="price", kind="regression")), r"a \(binary\), price \(regression\)"),
        ((), "no labels"),
        (
            [Label(name="bought", mean=0.1), Label(name="click", mean=0.3)],
            "more conversions than clicks: bought is 1 in 10.000%, click is 1 in 30.000% of",
        ),
    ],
)
def test_other_labels_are_refused(labels, message):
    with pytest.raises(ConfigError, match=message):
        ESMM(make_schema(labels=labels))
