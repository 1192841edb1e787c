"""What the catalog says about a model is what the model does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from satrap import models
from satrap.errors import ConfigError
from satrap.models.layers.common import NEEDS
from satrap.models.layers.fields import EqualWidth
from satrap.schema import Categorical, Numeric, Schema
from satrap.tools.catalog import about, catalog
from tests.models.retrieval.histories import NAMES as NEXT_ITEM
from tests.models.sequence.histories import NAMES as OF_TARGETS

HISTORIES = (*NEXT_ITEM, *OF_TARGETS)

IMPLIED = {"esmm": {"one label"}, **{name: {"ids"} for name in HISTORIES}}
"""Models whose needs include or exclude another."""
PAGE = Path(__file__).resolve().parents[3] / "docs" / "models.md"


def create(name: str, without: str = "") -> torch.nn.Module:
    """Make a model from a schema that has all it needs, or lacks one thing."""
    needs = about(name).needs
    features: dict[str, Any] = {"price": Numeric(), "age": Numeric(), "size": Numeric(), "hour": Numeric()}
    if without != "ids":
        features |= {"user": Categorical(dim=8), "item": Categorical(dim=4)}
    if "sequence" in needs and without != "sequence":
        features["seen"] = Categorical(
            dim=4,
            table=None if without == "target" else "item",
            multi=True,
            pooling="none",
            sequence="past",
            max_values=3,
        )
    labels = ["click"] if ("one label" in needs) != (without == "one label") else ["click", "bought"]
    if without == "click, conversion":
        labels = ["click"]
    item = {"item": ["price", "age"]} if "item" in needs and without != "item" else {}
    with torch.device("meta"):
        return models.create(name, Schema(labels, features), **item)


@pytest.mark.parametrize("name", models.names())
def test_a_model_needs_what_it_declares_and_nothing_else(name: str) -> None:
    needs = set(about(name).needs)
    assert needs <= NEEDS.keys()
    create(name)
    for need in NEEDS.keys() - IMPLIED.get(name, set()):
        if need in needs:
            with pytest.raises(ConfigError) as caught:
                create(name, without=need)
            assert "what to do: " in str(caught.value), need
        else:
            create(name, without=need)


@pytest.mark.parametrize("name", models.names())
def test_models_of_one_width_have_the_layer_that_makes_it(name: str) -> None:
    layers = [layer for layer in create(name).modules() if isinstance(layer, EqualWidth)]
    assert [len(layer.maps) for layer in layers] == ([1] if about(name).one_width else [])
    assert not about(name).one_width or "vector_width" in models.arguments(name)


@pytest.mark.parametrize("name", models.names())
def test_everything_about_a_model_is_described(name: str) -> None:
    info = about(name)
    assert info.summary.endswith(".")
    assert info.source
    assert {one.name: one.default for one in info.arguments}.keys() == models.arguments(name).keys()
    assert [one.name for one in info.arguments if len(one.meaning) < 10] == []
    assert "tiny" in info.presets or not info.presets


def test_arguments_that_share_a_line_share_its_text() -> None:
    meanings = {one.name: one.meaning for one in about("wukong").arguments}
    assert meanings["fmb"] == meanings["lcb"]
    assert meanings["fmb"].startswith("output vectors of each layer")
    assert about("dcnv2").arguments[0].default == [256, 128]


def test_unknown_models_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'masknet'"):
        about("maskne")


def test_the_page_lists_every_model_with_its_needs() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\|([^|]*)\|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [(name, needs.strip()) for name, needs in rows] == [
        (one.name, "; ".join(one.needs)) for one in catalog()
    ]
