"""Which linear layers are divided, of the models here and of others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from satrap import models
from satrap.dense.parallel.tensor_plan import tensor_plan
from satrap.errors import ConfigError
from satrap.models.multitask.experts import Experts
from tests.dense.networks import schema
from tests.models.retrieval.histories import NAMES as NEXT_ITEM
from tests.models.sequence.histories import NAMES as HISTORIES

TOWER = {"towers.towers.0.0": "column", "towers.towers.0.2": "row"}
PAIR = {"deep.0": "column", "deep.2": "row"}
PLANS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "dnn": ({}, PAIR),
    "wide_deep": ({}, PAIR),
    "deepfm": ({"dropout": 0.1}, {"deep.0": "column", "deep.3": "row"}),
    "dcnv2": (
        {"rank": 4, "cross_layers": 1},
        {"cross.0.project.0": "column", "cross.0.project.1": "row"} | PAIR,
    ),
    "dlrm": (
        {},
        {"bottom.0": "column", "bottom.2": "row", "bottom.4": "alone", "top.0": "column", "top.2": "row"},
    ),
    "finalmlp": (
        {"context1": ["user"]},
        {"gates.0.score.0": "column", "gates.0.score.2": "row"}
        | {f"deep{i}.{layer}": cut for i in (1, 2) for layer, cut in ((0, "column"), (2, "row"))},
    ),
    "xdeepfm": ({}, PAIR),
    "autoint": ({}, PAIR),
    "fibinet": ({}, PAIR),
    "gdcn": (
        {"rank": 4, "cross_layers": 1},
        {
            f"cross.0.{part}.{k}": cut
            for part in ("project", "gate")
            for k, cut in enumerate(("column", "row"))
        }
        | PAIR,
    ),
    "masknet": (
        {"blocks": [4], "hidden": [6]},
        {
            "blocks.0.mask.0": "column",
            "blocks.0.mask.2": "row",
            "blocks.0.deep.0": "alone",
            "deep.0": "alone",
        },
    ),
    "finalnet": ({}, {f"deep{i}.{layer}": "alone" for i in (1, 2) for layer in (0, 3)}),
    "two_tower": (
        {"item": ["item"]},
        {
            f"towers.{tower}.{layer}": cut
            for tower in ("user", "item")
            for layer, cut in ((0, "column"), (2, "row"))
        },
    ),
    "mmoe": ({"experts": 4, "hidden": [4]}, {"experts": "experts"} | TOWER),
    "ple": (
        {"levels": 1, "own_experts": 2, "shared_experts": 4, "hidden": [4]},
        {f"levels.0.experts.{i}": "experts" for i in range(2)} | TOWER,
    ),
}


@pytest.mark.parametrize(
    "name", [name for name in models.names() if name not in ("esmm", *HISTORIES, *NEXT_ITEM)]
)
def test_the_models_here_have_a_plan_or_nothing_to_divide(name: str) -> None:
    arguments, expected = PLANS.get(name, ({}, {}))
    model = models.create(name, schema(), **arguments)
    if expected:
        assert tensor_plan(model, 2) == expected
    elif name == "wukong":
        assert [*tensor_plan(model, 2).values()][:2] == ["column", "row"]
    else:
        assert name in ("lr", "fm", "rankmixer")
        with pytest.raises(ConfigError, match="has no linear layers that can be split"):
            tensor_plan(model, 2)
    assert tensor_plan(model, 1) == {}


def test_only_element_wise_modules_may_stand_between_a_column_and_a_row() -> None:
    model = nn.Sequential(
        nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 6), nn.Sequential(nn.GELU(), nn.Linear(6, 3))
    )
    assert tensor_plan(model, 2) == {"0": "alone", "2": "column", "3.1": "row"}


def test_what_stands_alone_and_does_not_divide_stays_whole() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    assert tensor_plan(model, 2) == {"0": "column", "2": "row"}
    assert tensor_plan(nn.ModuleDict({"outside": nn.Linear(4, 8), "stack": model}), 2) == {
        "stack.0": "column",
        "stack.2": "row",
    }


def test_shared_and_computed_weights_are_left_alone() -> None:
    shared, computed = nn.Linear(8, 8), weight_norm(nn.Linear(8, 8))
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), computed, nn.ReLU(), nn.Linear(8, 8))
    assert tensor_plan(model, 2) == {"6": "alone"}
    model.tensor_plan = {"4": "column"}  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="'4', whose weight is shared or computed"):
        tensor_plan(model, 2)


class Named(nn.Module):
    def __init__(self, plan: dict[str, str]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(4, 6), "down": nn.Linear(6, 4)}) for _ in "ab"
        )
        self.tensor_plan = plan


def test_a_model_names_its_plan() -> None:
    model = Named({"blocks.*.up": "column", "blocks.*.down": "row"})
    assert tensor_plan(model, 3) == {
        f"blocks.{i}.{layer}": cut for layer, cut in (("up", "column"), ("down", "row")) for i in range(2)
    }


@pytest.mark.parametrize(
    ("plan", "parts", "message"),
    [
        ({"blocks.0.upp": "column"}, 2, "'blocks.0.upp', which is not a linear layer"),
        ({"blocks.*.up": "cloumn"}, 2, "'cloumn' for 'blocks.*.up'"),
        ({"blocks.1.up": "column"}, 4, "mesh.tensor 4 does not divide the 6 outputs of blocks.1.up"),
        ({"blocks.1.down": "row"}, 4, "mesh.tensor 4 does not divide the 6 inputs of blocks.1.down"),
        ({"blocks.0": "experts"}, 2, "'blocks.0', which is not a module with a count of experts"),
        ({}, 2, "no linear layers"),
    ],
)
def test_a_wrong_plan_is_an_error(plan: dict[str, str], parts: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tensor_plan(Named(plan), parts)
    assert message in caught.value.what
    assert caught.value.fix
    if "upp" in message:
        assert caught.value.fix.startswith("did you mean 'blocks.0.up'? linear layers: ")


def test_a_hidden_width_that_does_not_divide_is_an_error_that_names_the_layer() -> None:
    with pytest.raises(ConfigError, match=r"mesh.tensor 2 does not divide the 7 outputs of deep.0"):
        tensor_plan(models.create("dnn", schema(), hidden=[7, 4]), 2)


def test_experts_are_divided_as_wholes_and_their_number_must_divide() -> None:
    made = models.create("mmoe", schema(), experts=6, hidden=[6])
    assert tensor_plan(made, 3) == {"experts": "experts"} | TOWER
    with pytest.raises(ConfigError, match=r"mesh.tensor 4 does not divide the 6 experts of experts"):
        tensor_plan(made, 4)
    one = models.create("mmoe", schema(), experts=1, expert_hidden=[8, 4], hidden=[4])
    assert tensor_plan(one, 2) == {"experts.layers.0": "column", "experts.layers.2": "row"} | TOWER


def test_a_model_or_its_parts_say_how_experts_are_divided() -> None:
    made = nn.Sequential(Experts(4, 8, [6], dropout=0.0, batch_norm=False), nn.Linear(6, 4))
    assert tensor_plan(made, 2) == {"0": "experts", "1": "alone"}
    made.tensor_plan = {"*": "experts"}  # type: ignore[assignment]
    assert tensor_plan(made, 2) == {"0": "experts"}
    made[0].tensor_plan = {"layers.0": "column"}
    del made.tensor_plan
    with pytest.raises(ConfigError, match=r"'layers.0', which is not a linear layer"):
        tensor_plan(made, 2)


def test_batch_normalisation_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"batch normalization: deep\.1"):
        tensor_plan(models.create("dnn", schema(), batch_norm=True), 2)


def test_a_pair_computes_what_the_layers_compute() -> None:
    """The plan's formula: columns of the first and rows of the second layer, summed over the parts."""
    torch.manual_seed(0)
    up, down, x = nn.Linear(4, 6), nn.Linear(6, 3), torch.randn(5, 4)
    parts = [
        torch.relu(x @ w.T + b) @ v.T
        for w, b, v in zip(up.weight.chunk(2), up.bias.chunk(2), down.weight.chunk(2, 1), strict=True)
    ]
    torch.testing.assert_close(sum(parts) + down.bias, down(torch.relu(up(x))))
