"""DIN: weighted sums of events, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from satrap import models
from satrap.batch import EmbeddedBatch, JaggedRows
from satrap.dense.parallel.tensor_plan import tensor_plan
from satrap.errors import ConfigError
from satrap.models import DIN
from satrap.schema import Categorical, Feature, Label, Schema
from tests.models.sequence.histories import (
    ALONE,
    FEATURES,
    SCHEMA,
    check_autocast,
    check_equals_plain,
    check_learns_what_was_seen,
    check_samples_are_independent,
    event,
    make_batch,
    padded,
    randomised,
)

OPTIONS: list[dict[str, Any]] = [
    {},
    {"softmax": True},
    {"attention": []},
    {"attention": [7, 5], "context": ["genre"], "hidden": []},
]
LENGTHS = [3, 0, 8, 1, 0, 5, 2, 8]


def made(**options: Any) -> DIN:
    torch.manual_seed(0)
    return DIN(SCHEMA, **{"attention": [6], "hidden": [5], **options})


def dice(layer: Any, x: Tensor) -> Tensor:
    """In training, of all rows of x."""
    mean, variance = x.mean(0), x.var(0, correction=0)
    with torch.no_grad():
        for running, now in ((layer.norm.running_mean, mean), (layer.norm.running_var, x.var(0))):
            running.mul_(0.9).add_(0.1 * now)
        layer.norm.num_batches_tracked += 1
    p = torch.sigmoid((x - mean) / (variance + 1e-8).sqrt())
    return x * p + layer.slope * x * (1 - p)


def activated(layer: Any, x: Tensor) -> Tensor:
    if isinstance(layer, nn.ReLU):
        return F.relu(x)
    if layer.training:
        return dice(layer, x)
    p = torch.sigmoid((x - layer.norm.running_mean) / (layer.norm.running_var + 1e-8).sqrt())
    return x * p + layer.slope * x * (1 - p)


def plain(model: Any, batch: EmbeddedBatch) -> Tensor:
    """DIN's formula over histories padded to the longest, with all four parts of the input."""
    compared = ["seen"] if model.history.context else ["seen", "genre"]
    events, real = padded(batch, compared)
    context = padded(batch, [*(["genre"] if model.history.context else []), "rating"])[0]
    target = torch.cat([batch["item"]] + ([] if model.history.context else [batch["kind"]]), dim=1)
    each = target.unsqueeze(1).expand_as(events)
    x = torch.cat([each, events, each - events, each * events, context], dim=2)
    unit = model.score
    x = x @ unit.compare.weight.T + unit.compare.bias
    for activation, layer in zip(unit.activations, unit.layers, strict=True):
        flat = activated(activation, x[real])  # padding is no part of the statistics
        x = torch.zeros(*x.shape[:2], flat.shape[1]).masked_scatter(real.unsqueeze(2), flat)
        x = x @ layer.weight.T + layer.bias
    if model.softmax:
        x = torch.softmax(x.masked_fill(~real.unsqueeze(2), -1e9), dim=1)
    interest = (
        (x if model.softmax else 1 + x) * real.unsqueeze(2) * torch.cat([events, context], dim=2)
    ).sum(1)
    names = ("user", "item", "kind")
    y = torch.cat([*(batch[name] for name in names), batch.numeric, interest], dim=1)
    for layer in model.deep:
        y = y @ layer.weight.T + layer.bias if isinstance(layer, nn.Linear) else activated(layer, y)
    return y @ model.head.weight.T + model.head.bias


@pytest.mark.parametrize("options", [*OPTIONS, {"activation": "dice"}], ids=str)
def test_it_equals_a_plain_padded_network_after_200_steps(options: dict[str, Any]) -> None:
    check_equals_plain(made(**options), plain)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_batch_is_its_samples_one_by_one_in_any_order(options: dict[str, Any]) -> None:
    check_samples_are_independent(randomised(made(**options)), LENGTHS)


def test_in_evaluation_dice_does_not_depend_on_the_batch() -> None:
    model = made(activation="dice")
    model(make_batch(LENGTHS))
    check_samples_are_independent(randomised(model.eval()), LENGTHS)


def test_dice_takes_one_row_or_none_in_training() -> None:
    model = randomised(made(activation="dice"))
    for lengths in ([], [0], [1], [0, 0, 1]):
        logits = model(make_batch(lengths))
        assert logits.shape == (len(lengths), 1)
        assert torch.isfinite(logits).all()


def test_a_sum_is_one_event_at_a_time() -> None:
    """Without softmax, an event's part of the sum is the same in any history."""
    model = randomised(made(hidden=[]))

    def logit(start: int, stop: int) -> Tensor:
        batch = make_batch([3])
        for rows in (*batch.embeddings.values(), *batch.events.values()):
            if isinstance(rows, JaggedRows):
                rows.values, rows.offsets = rows.values[start:stop], torch.tensor([0, stop - start])
        return model(batch)

    parts = [logit(i, i + 1) - logit(0, 0) for i in range(3)]
    torch.testing.assert_close(logit(0, 3) - logit(0, 0), torch.stack(parts).sum(0))


def test_a_target_is_the_first_feature_of_the_table_outside() -> None:
    features = {**FEATURES, "other": Categorical(dim=6, table="items")}
    model = DIN(Schema(["y"], features))
    assert model.history.pairs == {"seen": "item", "genre": "kind"}
    assert (model.history.width, model.history.extra) == (9, 1)


def test_a_model_without_other_features_and_an_empty_batch() -> None:
    alone = Schema(["y"], ALONE)
    assert DIN(alone)(make_batch([2, 0], schema=alone)).shape == (2, 1)
    assert made()(make_batch([])).shape == (0, 1)
    assert made(softmax=True)(make_batch([])).shape == (0, 1)


def test_outputs_and_first_logits_are_those_of_the_labels() -> None:
    labels = [Label(name="a", mean=0.003), Label(name="b", kind="multiclass", classes=3)]
    logits = DIN(Schema(labels, FEATURES))(make_batch([2, 0, 7]))
    assert logits.shape == (3, 4)
    torch.testing.assert_close(torch.sigmoid(logits[:, 0]), torch.full((3,), 0.003))


UNPAIRED = {**FEATURES, "kind": Categorical(dim=3)}


@pytest.mark.parametrize(
    ("features", "options", "what"),
    [
        ({"user": Categorical(dim=4)}, {}, "needs exactly one sequence"),
        (
            UNPAIRED,
            {},
            r"DIN compares events with a target, but 'genre' has none\n.*\n.*table: FEATURE in genre, .*"
            r"context: \[genre\]",
        ),
        (FEATURES, {"context": ["genr"]}, r"context names 'genr', which is not .*\n.*mean 'genre'"),
        (FEATURES, {"context": ["seen", "genre"]}, "all features of the sequence are in context"),
        ({**FEATURES, "tags": event(sequence=None)}, {}, "pooling is none in tags"),
        (FEATURES, {"activation": "prelu"}, "activation"),
        (FEATURES, {"attention": 8}, "attention"),
        (FEATURES, {"attention": [0]}, "whole number >= 1, got 0"),
    ],
)
def test_what_it_cannot_do_is_refused(
    features: dict[str, Feature], options: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        models.create("din", Schema(["y"], features), **options)


def test_the_published_size_is_as_documented() -> None:
    with torch.device("meta"):
        model: Any = models.create("din", SCHEMA, preset="published")
    assert [layer.out_features for layer in model.score.layers] == [256, 1]
    assert model.score.compare.weight.shape == (512, 4 * 9 + 1)
    assert [layer.out_features for layer in model.deep if isinstance(layer, nn.Linear)] == [1024, 512, 256]


@pytest.mark.parametrize("activation", ["relu", "dice"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_it_computes_under_autocast(dtype: torch.dtype, activation: str) -> None:
    check_autocast(made(activation=activation, softmax=True), dtype)


@pytest.mark.pytorch("2.13")
def test_a_tensor_group_divides_its_mlp() -> None:
    assert tensor_plan(made(hidden=[8, 4]), 2) == {"deep.0": "column", "deep.2": "row"}
    with pytest.raises(ConfigError, match="batch normalization"):
        tensor_plan(made(activation="dice"), 2)


def test_a_label_that_the_history_decides_is_learnt() -> None:
    check_learns_what_was_seen(DIN, steps=100, hidden=[16])
