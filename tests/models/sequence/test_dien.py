"""DIEN: interests that evolve, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from satrap import models
from satrap.batch import EmbeddedBatch
from satrap.dense.parallel.tensor_plan import tensor_plan
from satrap.errors import ConfigError
from satrap.models import DIEN
from satrap.schema import Schema
from tests.models.sequence.histories import (
    ALONE,
    FEATURES,
    SCHEMA,
    check_autocast,
    check_equals_plain,
    check_learns_what_was_seen,
    check_order_matters,
    check_samples_are_independent,
    make_batch,
    padded,
    randomised,
)

OPTIONS: list[dict[str, Any]] = [{}, {"softmax": False}, {"context": ["genre"], "hidden": []}]
LENGTHS = [3, 0, 8, 1, 0, 5, 2, 8]


def made(**options: Any) -> DIEN:
    torch.manual_seed(0)
    return DIEN(SCHEMA, **{"attention": [6], "hidden": [5], **options})


def step(gru: Any, x: Tensor, h: Tensor, a: Tensor | None = None) -> Tensor:
    width = h.shape[1]
    of_x, of_h = x @ gru.weight_ih.T + gru.bias_ih, h @ gru.weight_hh.T + gru.bias_hh
    r = torch.sigmoid(of_x[:, :width] + of_h[:, :width])
    u = torch.sigmoid(of_x[:, width : 2 * width] + of_h[:, width : 2 * width])
    u = u if a is None else a * u
    return (1 - u) * h + u * torch.tanh(of_x[:, 2 * width :] + r * of_h[:, 2 * width :])


def plain(model: Any, batch: EmbeddedBatch) -> Tensor:
    """DIEN's formula over histories padded to the longest, step by step."""
    context = ["genre"] if model.history.context else []
    compared = [name for name in ("seen", "genre") if name not in context]
    x, real = padded(batch, [*compared, *context, "rating"])
    target = torch.cat([batch["item"], *([] if context else [batch["kind"]])], dim=1)
    h, states = torch.zeros_like(target), []
    for j in range(x.shape[1]):
        h = step(model.interests, x[:, j], h)
        states.append(h)
    interests = torch.stack(states, 1)
    each = target.unsqueeze(1).expand_as(interests)
    unit = model.score
    score = torch.cat([each, interests, each - interests, each * interests], dim=2)
    score = F.relu(score @ unit.compare.weight.T + unit.compare.bias)
    score = score @ unit.layers[0].weight.T + unit.layers[0].bias
    if model.softmax:
        score = torch.softmax(score.masked_fill(~real.unsqueeze(2), -1e9), dim=1)
    else:
        score = torch.sigmoid(score)
    h = torch.zeros_like(target)
    for j in range(x.shape[1]):
        h = torch.where(real[:, j : j + 1], step(model.evolution, interests[:, j], h, score[:, j]), h)
    y = torch.cat([*(batch[name] for name in ("user", "item", "kind")), batch.numeric, h], dim=1)
    return model.head(model.deep(y))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_equals_a_plain_padded_network_after_200_steps(options: dict[str, Any]) -> None:
    check_equals_plain(made(**options), plain)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_batch_is_its_samples_one_by_one_in_any_order(options: dict[str, Any]) -> None:
    check_samples_are_independent(randomised(made(**options)), LENGTHS)


def test_the_order_of_events_matters() -> None:
    check_order_matters(randomised(made()))


def test_a_model_without_other_features_and_an_empty_batch() -> None:
    alone = Schema(["y"], ALONE)
    assert DIEN(alone)(make_batch([2, 0], schema=alone)).shape == (2, 1)
    assert made()(make_batch([])).shape == (0, 1)
    assert made()(make_batch([0, 0])).shape == (2, 1)


def test_a_feature_without_a_target_is_refused() -> None:
    features = {name: feature for name, feature in FEATURES.items() if name != "kind"}
    with pytest.raises(ConfigError, match="DIEN compares events with a target, but 'genre' has none"):
        models.create("dien", Schema(["y"], features))


def test_the_published_size_is_as_documented() -> None:
    with torch.device("meta"):
        model: Any = models.create("dien", SCHEMA, preset="published")
    assert model.interests.weight_ih.shape == (27, 10)  # states are as wide as the events' rows
    assert [layer.out_features for layer in model.score.layers] == [128, 1]
    assert model.score.compare.weight.shape == (256, 4 * 9)
    assert [layer.out_features for layer in model.deep if isinstance(layer, nn.Linear)] == [1024, 512, 256]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_it_computes_under_autocast(dtype: torch.dtype) -> None:
    check_autocast(made(), dtype)


@pytest.mark.pytorch("2.13")
def test_a_tensor_group_divides_its_mlp() -> None:
    assert tensor_plan(made(hidden=[8, 4]), 2) == {"deep.0": "column", "deep.2": "row"}


def test_a_label_that_the_history_decides_is_learnt() -> None:
    check_learns_what_was_seen(DIEN, steps=150, hidden=[16], softmax=False)
