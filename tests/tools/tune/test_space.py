from pathlib import Path

import pytest

from satrap.config import Recipe, load
from satrap.errors import ConfigError
from satrap.tools.tune.space import Dimension, _scaled, changes_of, chosen, space_of
from tests.launch.runs import RECIPE, make_recipe

ONLY = "tune.usual=false"


def space(tmp_path: Path, *overrides: str, text: str = RECIPE) -> tuple[Recipe, dict[str, Dimension]]:
    recipe = load(make_recipe(tmp_path, text), overrides)
    return recipe, {one.key: one for one in space_of(recipe)}


def texts(one: Dimension) -> list[str]:
    return [option.text for option in one.options]


def test_a_recipe_that_says_nothing_varies_its_own_values(tmp_path: Path) -> None:
    recipe, found = space(tmp_path)
    assert list(found) == [
        "embedding.optimizer.lr",
        "embedding.optimizer.weight_decay",
        "embedding.initial_scale",
        "features.*.dim",
        "dense.optimizer.lr",
        "dense.optimizer.weight_decay",
        "model.hidden",
        "model.dropout",
        "data.batch_size",
    ]  # no accumulator, whose own value 0 has no multiples
    decays = ["0", "1e-06", "1e-05", "0.0001", "0.001", "0.01"]
    assert {key: (one.own, texts(one)) for key, one in found.items()} == {
        "embedding.optimizer.lr": (3, ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5"]),
        "embedding.optimizer.weight_decay": (0, decays),
        "embedding.initial_scale": (1, ["0.001", "0.01", "0.1"]),
        "features.*.dim": (2, ["x0.25", "x0.5", "x1", "x2", "x4"]),
        "dense.optimizer.lr": (2, ["0.001", "0.003", "0.01", "0.03"]),
        "dense.optimizer.weight_decay": (0, decays),
        "model.hidden": (1, ["[4]", "[8]", "[16]", "[32]"]),
        "model.dropout": (0, ["0", "0.1", "0.2", "0.3", "0.5"]),
        "data.batch_size": (2, ["25", "50", "100", "200"]),
    }
    for one in found.values():
        assert dict(one.options[one.own].changes) == {}
        assert one.ordered
    assert chosen(recipe, space_of(recipe), {}).resolved() == recipe.resolved()


def test_numbers_alone_have_no_rows_to_vary(tmp_path: Path) -> None:
    text = RECIPE.replace("  user:  {dim: 4}\n  item:  {dim: 4}\n", "")
    _, found = space(tmp_path, text=text)
    assert [key for key in found if key.startswith(("embedding", "features"))] == []
    with pytest.raises(ConfigError, match=r"embedding\.optimizer\.lr cannot be varied"):
        space(tmp_path, "tune.search={embedding.optimizer.lr: [0.1, 0.2]}", text=text)


def test_a_choice_sets_its_keys_and_nothing_else(tmp_path: Path) -> None:
    recipe, found = space(tmp_path)
    choice = {"features.*.dim": 4, "model.dropout": 2, "dense.optimizer.lr": 0}
    plain = recipe.resolved()
    for name in ("user", "item"):
        plain["features"][name]["dim"] = 16
    plain["model"]["dropout"] = 0.2
    plain["dense"]["optimizer"]["lr"] = 0.001
    assert chosen(recipe, list(found.values()), choice).resolved() == plain
    assert changes_of(list(found.values()), {"model.dropout": 0}) == {}


def test_values_that_are_not_0_are_varied_by_factors(tmp_path: Path) -> None:
    _, found = space(
        tmp_path,
        "embedding.optimizer={name: adagrad, lr: 0.1, initial_accumulator: 0.2, weight_decay: 0.03}",
        "dense.optimizer={name: adamw, lr: 0.01, weight_decay: 0.01}",
    )
    assert texts(found["embedding.optimizer.initial_accumulator"]) == ["0.002", "0.02", "0.2", "2", "20"]
    assert texts(found["embedding.optimizer.weight_decay"]) == ["0", "0.003", "0.03", "0.3"]
    assert texts(found["dense.optimizer.weight_decay"]) == ["0", "0.001", "0.01", "0.1"]
    for l2, expected in ((0, ["0", "1e-06", "1e-05", "0.0001", "0.001", "0.01"]), (3, ["0.3", "3", "30"])):
        _, found = space(tmp_path / str(l2), f"embedding.optimizer={{name: ftrl, lr: 0.1, l2: {l2}.0}}")
        assert texts(found["embedding.optimizer.l2"])[-len(expected) :] == expected
    assert [_scaled(3, 0.1), _scaled(0.0123, 1), _scaled(0.0123, 2)] == [1, 0.0123, 0.025]
    assert _scaled([3, 0.5], 2) == [6, 1.0]


def test_widths_that_make_no_difference_are_left_out(tmp_path: Path) -> None:
    """The rows of a logistic regression have one column whatever `dim` says."""
    _, found = space(tmp_path, "model={name: lr}")
    assert "features.*.dim" not in found
    assert not any(key.startswith("model") for key in found)


def test_factors_that_give_the_same_width_are_tried_once(tmp_path: Path) -> None:
    _, found = space(tmp_path, "features.user.dim=2", "features.item.dim=2")
    assert texts(found["features.*.dim"]) == ["x0.25", "x1", "x2", "x4"]


def test_the_widths_of_rows_from_a_file_stay(tmp_path: Path) -> None:
    text = RECIPE + "tables: {vectors: {rows: vectors.npz}}\n"
    text = text.replace("item:  {dim: 4}", "item:  {dim: 4, table: vectors}")
    recipe, found = space(tmp_path, text=text)
    tried = chosen(recipe, list(found.values()), {"features.*.dim": 4}).schema().categorical
    assert (tried["user"].dim, tried["item"].dim) == (16, 4)
    with pytest.raises(ConfigError, match=r"features\.item\.dim cannot be varied") as caught:
        space(tmp_path / "b", "tune.search.features.item.dim=[8]", text=text)
    assert "rows from a file" in caught.value.why


def test_values_that_the_model_refuses_are_left_out(tmp_path: Path) -> None:
    """RankMixer divides its input among tokens and heads; what does not divide is no trial."""
    _, found = space(tmp_path, "model={name: finalmlp, hidden: [6], heads: 3}")
    assert texts(found["model.hidden"]) == ["[3]", "[6]", "[12]", "[24]"]
    _, found = space(tmp_path / "b", "model={name: finalmlp, hidden: [6], heads: 6}")
    assert texts(found["model.hidden"]) == ["[6]", "[12]", "[24]"]


def test_asked_keys_are_added_sorted_and_hold_the_recipes_value(tmp_path: Path) -> None:
    _, found = space(
        tmp_path,
        "tune.search.dense.optimizer.lr=[0.1, 0.001]",
        "tune.search.model.hidden=[[64, 32], [4]]",
        "tune.search.training.clip_norm=[1, null]",
        "tune.search.features.user.dim=[8]",
        "tune.search.features.*.dim=[]",
        "tune.search.embedding.optimizer=[{name: adam, lr: 0.001}]",
    )
    assert texts(found["dense.optimizer.lr"]) == ["0.001", "0.01", "0.1"]
    assert found["dense.optimizer.lr"].own == 1
    assert texts(found["model.hidden"]) == ["[8]", "[64, 32]", "[4]"]
    assert (found["model.hidden"].own, found["training.clip_norm"].own) == (0, 1)
    assert not found["training.clip_norm"].ordered
    assert texts(found["features.user.dim"]) == ["4", "8"]
    assert "features.*.dim" not in found
    assert not [key for key in found if key.startswith("embedding.optimizer.")]


def test_an_optimizer_can_be_exchanged_whole(tmp_path: Path) -> None:
    recipe, found = space(tmp_path, ONLY, "tune.search.embedding.optimizer=[{name: adam, lr: 0.001}]")
    [one] = found.values()
    tried = chosen(recipe, [one], {one.key: 1 - one.own})
    assert tried.sections.embedding.optimizer.to_dict()["name"] == "adam"


@pytest.mark.parametrize(
    ("key", "what", "fix"),
    [
        ("dense.optimizer.lrr=[1]", "unknown key 'lrr' in dense.optimizer", "did you mean 'lr'?"),
        ("model.dropuot=[0.1]", "model dnn has no argument 'dropuot'", "did you mean 'dropout'?"),
        ("embeding.dtype=[float16]", "unknown key 'embeding'", "did you mean 'embedding'?"),
        ("features.usr.dim=[8]", "feature 'usr' does not exist", "did you mean 'user'?"),
        ("dense.optimizer.lr=[-1]", "dense.optimizer.lr must be above 0, got -1", ""),
        ("model.dropout=[2]", "dropout", ""),
        ("data.split=[{modulo: 3}]", "data.split cannot be varied", "remove the key"),
        ("training.seed.x=[1]", "training.seed is not a mapping", ""),
        ("labels=[]", "labels cannot be varied", "remove the key"),
        ("training.metrics=[[]]", "training.metrics cannot be varied", "remove the key"),
        ("model.hidden=3", "tune.search.model.hidden must be a list, got 3", ""),
    ],
)
def test_a_wrong_key_or_value_is_one_error(tmp_path: Path, key: str, what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        space(tmp_path, ONLY, f"tune.search.{key}")
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert caught.value.where == f"--set tune.search.{key.partition('=')[0]}"


def test_nothing_to_try_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the search space is empty"):
        space(tmp_path, ONLY)
    with pytest.raises(ConfigError, match="the search space is empty"):
        space(tmp_path / "b", ONLY, "tune.search.dense.optimizer.lr=[0.01]")


def test_a_label_that_is_a_number_and_a_feature_with_a_dot(tmp_path: Path) -> None:
    text = RECIPE.replace("[clicked]", "[{name: price, kind: regression}]")
    text = text.replace("  price: {numeric: true, transform: [log1p, standardize]}\n", "")
    text = text.replace("  item: ", "  item.id: {dim: 2, column: item}\n  item: ")
    _, found = space(tmp_path, "tune.search.features.item.id.dim=[2, 4]", text=text)
    assert texts(found["features.item.id.dim"]) == ["2", "4"]
