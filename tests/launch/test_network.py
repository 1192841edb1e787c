from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from satrap import launch, models
from satrap.config import load
from satrap.config.keys.sections import DENSE_OPTIMIZERS
from satrap.errors import ConfigError
from satrap.launch.folder.resume import begun
from satrap.launch.network import DENSE_OPTIMIZERS as KINDS
from satrap.launch.network import dense_optimizer, make_model, without_leftovers
from satrap.tools.catalog import about
from tests.launch.runs import RECIPE, make_recipe


@pytest.mark.parametrize(
    ("keys", "kind", "expected"),
    [
        (
            "{name: sgd, lr: 0.5, momentum: 0.9, nesterov: true}",
            torch.optim.SGD,
            {"momentum": 0.9, "nesterov": True},
        ),
        ("{name: adagrad, lr: 0.5, eps: 1e-6}", torch.optim.Adagrad, {"eps": 1e-6}),
        (
            "{name: adam, lr: 0.5, betas: [0.8, 0.9]}",
            torch.optim.Adam,
            {"betas": (0.8, 0.9), "weight_decay": 0.0},
        ),
        ("{name: adamw, lr: 0.5}", torch.optim.AdamW, {"weight_decay": 0.01}),
    ],
)
def test_dense_optimizers(tmp_path: Path, keys: str, kind: type, expected: Mapping[str, object]) -> None:
    recipe = load(make_recipe(tmp_path), [f"dense.optimizer={keys}"])
    made = dense_optimizer(recipe)([torch.nn.Parameter(torch.zeros(2))])
    assert type(made) is kind
    group = made.param_groups[0]
    assert {key: group[key] for key in ("lr", *expected)} == {"lr": 0.5, **expected}


def test_dense_optimizers_are_those_of_the_recipe() -> None:
    assert set(KINDS) == set(DENSE_OPTIMIZERS)


def test_another_model_by_an_override_leaves_out_arguments_of_the_files_model(tmp_path: Path) -> None:
    """The run folder holds the recipe without them, so that the run can be continued."""
    text = RECIPE.replace("{name: dnn, hidden: [8]}", "{name: dcnv2, hidden: [8], cross_layers: 1}")
    path, said = make_recipe(tmp_path, text), list[str]()
    overrides = ["model.name=deepfm", "training.steps=2", "checkpoint.every_steps=1"]
    outcome = launch.train(load(path, overrides), str(tmp_path / "run"), notice=said.append)
    assert "note: deepfm has no argument cross_layers: removed from the recipe's model" in said
    assert outcome.folder.recipe().resolved()["model"] == {"name": "deepfm", "hidden": [8]}
    again = load(path, ["model.name=deepfm", "training.steps=4", "checkpoint.every_steps=1"])
    assert launch.train(again, str(tmp_path / "run"), resume=True).result.steps == 4
    assert begun(again, str(tmp_path / "run")) is None


@pytest.mark.parametrize(
    ("model", "override", "said"),
    [
        ("{name: deepfm, cross_layers: 1}", [], "has no argument 'cross_layers'"),
        ("{name: dcnv2}", ["model.name=deepfm", "model.cross_layers=1"], "has no argument 'cross_layers'"),
        ("{name: dnn, hiden: [8]}", ["model.hidden=[4]"], "has no argument 'hiden'"),
        ("{name: wukong, preset: published_1b}", ["model.name=mmoe", "model.preset=x"], "has no preset 'x'"),
    ],
)
def test_other_arguments_that_a_model_lacks_are_errors(
    tmp_path: Path, model: str, override: list[str], said: str
) -> None:
    recipe = load(make_recipe(tmp_path, RECIPE.replace("{name: dnn, hidden: [8]}", model)), override)
    assert without_leftovers(recipe) is recipe
    with pytest.raises(ConfigError, match=said):
        make_model(recipe, recipe.schema())


def test_a_preset_stays_if_the_other_model_has_it(tmp_path: Path) -> None:
    path = make_recipe(
        tmp_path, RECIPE.replace("{name: dnn, hidden: [8]}", "{name: rankmixer, preset: published_1b}")
    )
    left = without_leftovers(load(path, ["model.name=mmoe"]))
    assert left.resolved()["model"] == {"name": "mmoe"}
    kept = load(path, ["model.name=rankmixer"])
    assert without_leftovers(kept) is kept


NUMBERS = "price: {numeric: true}, age: {numeric: true}"
IDS = f"{NUMBERS}, user: {{dim: 8}}, item: {{dim: 4}}, ads: {{dim: 16, multi: true, separator: '|'}}"
HISTORY = (
    f"{IDS}, seen: {{dim: 4, multi: true, separator: '|', pooling: none, sequence: past, max_values: 9}}"
)


@pytest.mark.parametrize("features", [NUMBERS, IDS, HISTORY], ids=["numbers", "ids", "history"])
@pytest.mark.parametrize("name", models.names())
def test_any_model_fits_a_recipe_or_the_error_names_the_change(
    tmp_path: Path, name: str, features: str
) -> None:
    """Dims differ, as `satrap init` chooses them."""
    start, rest = RECIPE.split("features:\n")[0], "model: {name: dcnv2, cross_layers: 1, bottom: [4]}\n"
    path = make_recipe(tmp_path, f"{start}features: {{{features}}}\n{rest}")
    recipe = load(path, [f"model.name={name}"])
    unmet = set(about(name).needs) - {"one label"}
    unmet -= {"ids"} if features != NUMBERS else set()
    unmet -= {"sequence"} if features == HISTORY else set()
    if features == HISTORY and "sequence" not in about(name).needs:
        unmet.add("one vector per feature")
    if features == NUMBERS and name == "rankmixer":
        unmet.add("a column per token")
    if not unmet:
        assert make_model(recipe, recipe.schema()) is not None
        return
    with pytest.raises(ConfigError, match="what to do: ") as caught:
        make_model(recipe, recipe.schema())
    assert f"{path}" in str(caught.value)
