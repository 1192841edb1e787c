"""Presets are arguments that their models take, with the sizes of publications."""

from dataclasses import replace

import pytest
import torch

from satrap import models
from satrap.config import load
from satrap.errors import ConfigError
from satrap.launch.network import make_model
from satrap.models.presets import PRESETS
from tests.launch.runs import make_recipe
from tests.models.helpers import make_schema
from tests.models.retrieval.histories import NAMES as NEXT_ITEM
from tests.models.retrieval.histories import SCHEMA as NEXT_ITEM_HISTORY
from tests.models.sequence.histories import NAMES as HISTORIES
from tests.models.sequence.histories import SCHEMA as HISTORY


@pytest.mark.parametrize("name", PRESETS)
def test_presets_stand_for_arguments(name):
    labels = ("click", "bought") if name == "esmm" else ("y",)
    schema = HISTORY if name in HISTORIES else make_schema(dims=(16, 16, 16), labels=labels)
    key: dict[str, object] = {"hidden": [4]}
    if name in NEXT_ITEM:
        schema, key = NEXT_ITEM_HISTORY, {"dropout": 0.7}
    assert {"tiny", "published"} <= PRESETS[name].keys()
    with torch.device("meta"):
        assert models.create(name, schema, preset="tiny").arguments == {}
        for preset, arguments in PRESETS[name].items():
            model = models.create(name, schema, preset=preset)
            assert models.describe(model) == {"name": name, "arguments": arguments}
        other = models.create(name, schema, preset="published", **key)
    assert other.arguments == {**PRESETS[name]["published"], **key}


@pytest.mark.parametrize(
    ("name", "preset", "weights"),
    [
        ("rankmixer", "published", 151e6),  # 2 * 4 * 2 * 16 * 768^2
        ("rankmixer", "published_1b", 1208e6),
        ("hstu", "published", 5 * 1.31e6),  # 5 * 512^2 a block
    ],
)
def test_published_presets_have_as_many_weights_as_their_formula_says(name, preset, weights):
    with torch.device("meta"):
        schema = HISTORY if name in HISTORIES else make_schema(dims=(16, 16, 16))
        model = models.create(name, schema, preset=preset)
    assert sum(p.numel() for p in model.blocks.parameters()) == pytest.approx(weights, rel=0.01)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("xdeepfm", 23_461_462 - 22_949_476),
        ("autoint", 23_844_454 - 22_949_476),
        ("fibinet", 29_273_411 - 22_949_476),
        ("masknet", 21_530_629 - 20_863_160),
        ("finalnet", 21_658_582 - 20_863_420),
    ],
)
def test_published_presets_have_the_weights_that_bars_printed(name, weights):
    """Totals of BARS on Criteo_x1, 39 fields of dim 10, less the rows: 2,086,316 ids of 10 numbers, or of 11
    with first-order weights; FinalNet's version has one more row for each of 26 columns."""
    with torch.device("meta"):
        model = models.create(name, make_schema(dims=(10,) * 39, numbers=0), preset="published")
    biases = {"xdeepfm": 1, "autoint": 1}  # BARS has a bias for each of two summands of the logit
    assert sum(p.numel() for p in model.parameters()) + biases.get(name, 0) == weights


def test_the_published_mmoe_has_the_layers_of_its_source():
    with torch.device("meta"):
        model = models.create("mmoe", make_schema(dims=(16, 16, 16)), preset="published")
    experts = [weight.shape[0] // 3 for weight in model.experts.parameters() if weight.ndim == 2]
    assert experts == [512, 256, 128]
    assert [w.shape[0] for w in model.towers.parameters() if w.ndim == 2] == [256, 128, 64, 1]


@pytest.mark.parametrize(
    ("name", "dim", "layers"),
    [
        ("gru4rec", 100, lambda: [torch.nn.GRU(100, 100), torch.nn.Linear(100, 100)]),
        ("bert4rec", 64, lambda: [torch.nn.TransformerEncoderLayer(64, 2, 256) for _ in range(2)]),
    ],
)
def test_published_models_of_the_next_item_have_the_weights_of_their_sources(name, dim, layers):
    features = {k: replace(each, dim=dim) for k, each in NEXT_ITEM_HISTORY.categorical.items()}
    with torch.device("meta"):
        model = models.create(name, NEXT_ITEM_HISTORY.replace(features), preset="published")
        expected = sum(p.numel() for layer in layers() for p in layer.parameters())
    own = [model.encoder, model.project] if name == "gru4rec" else [model.encoder.blocks]
    assert sum(p.numel() for part in own for p in part.parameters()) == expected


def test_an_unknown_preset_is_refused_with_the_nearest():
    schema = make_schema()
    with pytest.raises(ConfigError, match=r"wukong has no preset 'publishd'\n.*did you mean 'published'\?"):
        models.create("wukong", schema, preset="publishd")
    with pytest.raises(ConfigError, match=r"lr has no preset 'tiny'\n.*this model has no presets"):
        models.create("lr", schema, preset="tiny")


def test_a_preset_is_what_arguments_say():
    assert models.arguments("rankmixer", "published") == {
        "layers": 2,
        "tokens": 16,
        "width": 768,
        "expansion": 4,
        "hidden": (),
        "dropout": 0.0,
    }


def test_a_recipe_names_a_preset(tmp_path):
    recipe = load(make_recipe(tmp_path), ["model={name: wukong, preset: published, layers: 1}"])
    model = make_model(recipe, recipe.schema())
    assert models.describe(model)["arguments"] == {**PRESETS["wukong"]["published"], "layers": 1}
