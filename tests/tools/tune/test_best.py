from pathlib import Path

import pytest

from satrap.config import load
from satrap.tools.tune.best import write_best
from satrap.tools.tune.space import chosen, space_of
from satrap.tools.tune.study import Trial
from tests.launch.runs import RECIPE, make_recipe

COMMENTED = """\
# Clicks of a shop.
data:
  train: rows.csv   # all of them
  split: {modulo: 10, validation: [8], test: [9]}  # by row
  join:
    - {source: side.csv, on: item}

labels: [clicked]
features:
  user:  {dim: 4}   # a person
  item:  {dim: 4}
  price: {numeric: true, transform: [log1p, standardize]}
model:
  name: dnn
  hidden: [8]       # small
training: {loss: "own.py:mine", metrics: ["own.py:error", "package.metrics:gain"], monitor: error}
tables:
  item: {rows: vectors.npz}  # of last year
about: {md5: {rows.csv: "0"}}
"""


def trial(choice: dict[str, int], number: int = 7, value: float = 0.75) -> Trial:
    return Trial(number, choice, "complete", value, 2, 1.0, "", number == 1)


def written(tmp_path: Path, text: str, *overrides: str, **choice: int) -> str:
    """Write the best recipe; it must say what the trial's recipe says, wherever it is read."""
    recipe = load(make_recipe(tmp_path / "data", text), overrides)
    space = space_of(recipe)
    keys = {key.replace("__", "."): value for key, value in choice.items()}
    best = trial({one.key: keys.get(one.key, one.own) for one in space})
    file = tmp_path / "best.yaml"
    write_best(file, recipe, space, best, trial(best.choice, 1, 0.5), "auc")
    assert load(file).resolved() == chosen(recipe, space, best.choice).resolved()
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["best.yaml"]
    return file.read_text(encoding="utf-8")


def test_comments_stay_and_files_are_absolute(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "own.py").write_text("def mine(logits, batch): return logits.mean()\n")
    (tmp_path / "data" / "side.csv").write_text("item,kind\n1,a\n")
    text = written(tmp_path, COMMENTED, model__hidden=2, dense__optimizer__lr=0)
    lines = text.splitlines()
    assert lines[:4] == [
        "# Written by satrap tune: trial 7, validation AUC 0.7500.",
        f"# {tmp_path}/data/clicks.yaml has 0.5000. Changes:",
        "#   dense.optimizer.lr: 0.0001, was 0.001",
        "#   model.hidden: [16], was [8]",
    ]
    for comment in ("Clicks of a shop.", "all of them", "by row", "a person", "small", "of last year"):
        assert f"# {comment}" in text
    assert "  hidden: [16]" in text
    assert f"train: {tmp_path}/data/rows.csv " in text
    assert f"source: {tmp_path}/data/side.csv" in text
    assert f"metrics: [{tmp_path}/data/own.py:error, package.metrics:gain]" in text.replace('"', "")
    assert f"item: {{rows: {tmp_path}/data/vectors.npz}}" in text


@pytest.mark.parametrize(
    "overrides", [(), ("model={name: fm}",), ("dense.optimizer={name: sgd, lr: 0.5}", "training.epochs=1")]
)
def test_overrides_are_in_it(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    written(tmp_path, RECIPE, *overrides, embedding__optimizer__lr=0, features_of_none=0)


def test_a_value_used_twice_by_an_alias_is_changed_once(tmp_path: Path) -> None:
    text = RECIPE.replace("item:  {dim: 4}", "item:  {dim: &four 4}").replace(
        "user:  {dim: 4}", "user:  &user {dim: 4}"
    )
    text = text.replace("item:  {dim: &four 4}", "item:  *user")
    search = "tune.search.features.user.dim=[4, 16]"
    assert "dim: 16" in written(tmp_path, text, search, features__user__dim=1)
