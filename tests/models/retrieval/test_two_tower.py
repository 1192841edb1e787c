"""Two towers: a score is the dot product of two vectors, each of its own features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from satrap import models
from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.models import TwoTower
from satrap.schema import Categorical, Label, Numeric, Schema, Vector
from tests.models.helpers import fit, make_batch, make_schema

MIXED = Schema(
    ["y"],
    {
        "a": Categorical(dim=4),
        "n": Numeric(),
        "b": Categorical(dim=3),
        "v": Vector(dim=2),
        "c": Categorical(dim=5),
        "m": Numeric(),
    },
)


def dense(layers: nn.Module, x: Any) -> Any:
    """What Linear and ReLU make of an array."""
    for layer in layers:  # type: ignore[attr-defined]
        if isinstance(layer, nn.Linear):
            x = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        else:
            x = np.maximum(x, 0)
    return x


def test_the_score_is_that_of_numpy() -> None:
    torch.manual_seed(0)
    model = TwoTower(MIXED, item=["m", "v", "b"], hidden=[6, 5], width=7)
    assert model.tower_features == {"user": ("a", "n", "c"), "item": ("b", "v", "m")}
    rows = {name: torch.randn(9, feature.dim) for name, feature in MIXED.categorical.items()}
    numeric = torch.randn(9, 4)  # n, v, v, m
    with torch.no_grad():
        model.bias.fill_(0.25)
        found = model(EmbeddedBatch(9, rows, numeric))
    a, b, c, n = (x.numpy() for x in (rows["a"], rows["b"], rows["c"], numeric))
    user = dense(model.towers["user"], np.concatenate([a, c, n[:, :1]], 1))
    item = dense(model.towers["item"], np.concatenate([b, n[:, 1:4]], 1))
    assert user.shape == item.shape == (9, 7)
    np.testing.assert_allclose(found[:, 0], (user * item).sum(1) + 0.25, rtol=1e-5, atol=1e-5)


def test_a_tower_needs_its_own_features_alone() -> None:
    torch.manual_seed(0)
    model = TwoTower(MIXED, item=["b", "v"])
    rows = {name: torch.randn(5, feature.dim) for name, feature in MIXED.categorical.items()}
    numeric = torch.randn(5, 4)
    user = model.tower_vectors("user", EmbeddedBatch(5, {k: rows[k] for k in "ac"}, numeric[:, [0, 3]]))
    item = model.tower_vectors("item", EmbeddedBatch(5, {"b": rows["b"]}, numeric[:, 1:3]))
    scores = (user * item).sum(1, keepdim=True) + model.bias
    torch.testing.assert_close(scores, model(EmbeddedBatch(5, rows, numeric)))


def test_it_learns_which_users_like_which_items() -> None:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 10, (600, 2), generator=generator)
    y = ((ids[:, :1] + ids[:, 1:]) % 2).float()
    schema = make_schema(dims=(4, 4), numbers=1)
    torch.manual_seed(0)
    model = TwoTower(schema, item=["c1"], hidden=[24])
    logits = fit(model, schema, ids, torch.randn(600, 1, generator=generator), y, steps=80)
    assert roc_auc_score(y[:, 0], logits[:, 0]) > 0.98


def test_all_weights_and_rows_get_gradients() -> None:
    schema = make_schema(numbers=2)
    torch.manual_seed(1)
    model = models.create("two_tower", schema, item=["c2", "n1"], batch_norm=True, dropout=0.1)
    batch = make_batch(model, schema, size=64)
    logits = model(batch)
    assert (logits.shape, logits.dtype) == ((64, 1), torch.float32)
    (logits * torch.randn(64, 1)).sum().backward()
    for name, weights in model.named_parameters():
        if not name.endswith(("0.bias",)):  # batch normalisation takes the bias of the layer before it away
            assert weights.grad is not None, name
            assert weights.grad.abs().sum() > 0, name
    grads: list[Tensor | None] = [rows.grad for rows in batch.embeddings.values()]  # type: ignore[union-attr]
    assert all(grad is not None and grad.abs().sum() > 0 for grad in grads)


def test_it_starts_near_a_known_mean() -> None:
    schema = make_schema(labels=(Label(name="y", mean=0.2),))
    model = TwoTower(schema, item=["c0"])
    assert model.bias.item() == pytest.approx(np.log(0.2 / 0.8))


def test_arguments_make_the_same_model_again() -> None:
    made = models.describe(TwoTower(MIXED, item=["b"], width=4))
    assert made == {"name": "two_tower", "arguments": {"item": ["b"], "width": 4}}


def test_features_of_neither_tower_are_not_used() -> None:
    model = TwoTower(MIXED, item=["b"], user=["n", "a"], hidden=[3])
    assert model.tower_features == {"user": ("a", "n"), "item": ("b",)}
    batch, other = (make_batch(model, MIXED, seed=seed) for seed in (1, 2))
    used = {name: batch.embeddings[name] for name in ("a", "b")}
    numeric = torch.cat([batch.numeric[:, :1], other.numeric[:, 1:]], dim=1)
    mixed = EmbeddedBatch(batch.size, other.embeddings | used, numeric)
    torch.testing.assert_close(model(mixed), model(batch))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"no features of the item\n"),
        ({"item": list(MIXED.features)}, r"no features of the user\n"),
        ({"item": ["bb"]}, r"item names 'bb', which is not a feature\n.*did you mean 'b'"),
        ({"item": ["b"], "user": ["aa"]}, r"user names 'aa', which is not a feature"),
        ({"item": ["b"], "user": ["a", "b"]}, "has feature 'b' in item and in user"),
        ({"item": ["b"], "user": []}, r"no features of the user\n"),
        ({"item": ["b"], "width": 0}, "width must be a whole number >= 1"),
    ],
)
def test_impossible_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TwoTower(MIXED, **options)


def test_it_has_one_output() -> None:
    with pytest.raises(ConfigError, match="one output, but the labels need 2"):
        TwoTower(make_schema(labels=("a", "b")), item=["c0"])
    with pytest.raises(ConfigError, match="no labels"):
        TwoTower(make_schema(labels=()), item=["c0"])


def test_lists_of_rows_are_refused() -> None:
    features = {"a": Categorical(dim=4), "b": Categorical(dim=4, multi=True, pooling="none")}
    with pytest.raises(ConfigError, match="pooling is none in b"):
        TwoTower(Schema(["y"], features), item=["a"])
