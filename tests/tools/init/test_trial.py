"""Counts and mean labels are tried by validation rows, and used only if these improve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from satrap.config import load
from satrap.errors import ConfigError
from satrap.tools.init import InitRequest, make_recipe, trial
from satrap.tools.init import recipe as recipe_module
from satrap.tools.init.choose import Features
from satrap.tools.init.recipe import DraftRecipe
from satrap.tools.init.trial import LEAST_ROWS, CountsTrial, add_counts, tried


def visits(rows: int, users: int = 400) -> pd.DataFrame:
    random = np.random.default_rng(1)
    user = random.integers(0, users, rows)
    return pd.DataFrame(
        {
            "user": [f"u{i}" for i in user],
            "color": random.choice(["red", "blue"], rows),
            "at": pd.date_range("2024-01-01", periods=rows, freq="min").astype(str),
            "y": (random.random(rows) < 0.2 + 0.6 * (user % 7) / 7).astype(int),
        }
    )


def draft(folder: Path, rows: pd.DataFrame, **asked: Any) -> DraftRecipe:
    rows.to_csv(folder / "rows.csv", index=False)
    output = str(folder / "recipe.yaml")
    made = make_recipe(InitRequest(data=[str(folder / "rows.csv")], output=output, **{"label": "y", **asked}))
    Path(output).write_text(made.text)
    return made


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands for the two trainings: `given` are their losses, `seen` their recipes and rows."""
    state: dict[str, Any] = {"given": [0.5, 0.4], "seen": []}

    def logloss(folder: Path, number: int) -> float:
        files = {path.stem: pa.parquet.read_table(path) for path in folder.glob("*.parquet")}
        state["seen"].append((load(folder / trial.RECIPE), files))
        return float(state["given"][number])

    monkeypatch.setattr(trial, "_logloss", logloss)
    return state


def test_what_helps_is_used_and_says_why(tmp_path: Path, losses: dict[str, Any]) -> None:
    made = draft(tmp_path, visits(LEAST_ROWS))
    assert made.trial == CountsTrial(("user",), 0.5, 0.4)
    features = load(tmp_path / "recipe.yaml").sections.features
    assert features["user_count"].count == "log1p"
    assert features["user_mean"].mean_label.folds == 5
    assert "logloss on validation rows 0.5000 without, 0.4000 with" in made.text
    assert "color_count" not in features
    assert not {"user_count", "user_mean"} & losses["seen"][0][0].sections.features.keys()
    assert {"user_count", "user_mean"} <= losses["seen"][1][0].sections.features.keys()


@pytest.mark.parametrize("loss", [0.5, 0.4996, 0.6])
def test_what_does_not_help_is_left_out_and_says_why(
    tmp_path: Path, losses: dict[str, Any], loss: float
) -> None:
    losses["given"] = [0.5, loss]
    made = draft(tmp_path, visits(LEAST_ROWS))
    assert "user_count" not in load(tmp_path / "recipe.yaml").sections.features
    assert f"not used: logloss on validation rows 0.5000 without, {loss:.4f} with" in made.text


@pytest.mark.parametrize(
    ("rows", "users", "asked"),
    [
        (LEAST_ROWS - 1, 400, {}),
        (LEAST_ROWS, 99, {}),
        (LEAST_ROWS, 15_000, {}),
        (LEAST_ROWS, 400, {"trial": False}),
        (LEAST_ROWS, 400, {"kind": "regression"}),
        (LEAST_ROWS, 400, {"drop": ["user"]}),
    ],
)
def test_there_is_nothing_to_try(
    tmp_path: Path, losses: dict[str, Any], rows: int, users: int, asked: dict[str, Any]
) -> None:
    assert draft(tmp_path, visits(rows, users), **asked).trial is None
    assert not losses["seen"]


def test_the_test_rows_are_not_looked_at(tmp_path: Path, losses: dict[str, Any]) -> None:
    rows = visits(LEAST_ROWS)
    place = np.arange(LEAST_ROWS) % 10
    draft(tmp_path, rows)
    [_, (_, files)] = losses["seen"]
    for part, kept in (("train", place < 8), ("validation", place == 8)):
        assert files[part].column("user").to_pylist() == rows["user"][kept].tolist()
    losses["seen"].clear()
    rows.head(10).to_csv(tmp_path / "test.csv", index=False)
    draft(tmp_path, rows, test=[str(tmp_path / "test.csv")])
    [_, (_, files)] = losses["seen"]
    assert files["train"].num_rows + files["validation"].num_rows == LEAST_ROWS


def test_a_split_by_time_validates_on_later_rows(tmp_path: Path, losses: dict[str, Any]) -> None:
    draft(tmp_path, visits(LEAST_ROWS), time="at")
    [_, (recipe, files)] = losses["seen"]
    split = load(tmp_path / "recipe.yaml").sections.data.split
    assert recipe.sections.data.split == split
    assert files.keys() == {"train"}


@pytest.mark.parametrize(("loss", "useful"), [(0.497, True), (0.498, False)])
def test_a_part_of_the_rows_must_gain_more(
    tmp_path: Path, losses: dict[str, Any], monkeypatch: pytest.MonkeyPatch, loss: float, useful: bool
) -> None:
    monkeypatch.setattr(recipe_module, "MOST_ROWS", LEAST_ROWS // 2)
    losses["given"] = [0.5, loss]
    made = draft(tmp_path, visits(LEAST_ROWS))
    assert made.trial is not None
    assert (made.trial.part, made.trial.useful) == (0.5, useful)
    assert "logloss on validation rows of 50% of the rows 0.5000 without" in made.text


def test_a_training_that_fails_leaves_them_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> float:
        raise ConfigError("too hot")

    monkeypatch.setattr(trial, "_logloss", fail)
    made = draft(tmp_path, visits(LEAST_ROWS))
    assert "not used: could not be tried: too hot" in made.text
    assert "user_count" not in load(tmp_path / "recipe.yaml").sections.features


def test_features_of_a_taken_name_are_numbered() -> None:
    features = Features()
    features.add("user_count", {"numeric": True}, "")
    add_counts(features, ["user"], "why")
    assert list(features.lines) == ["user_count", "user_count_2", "user_mean"]
    assert features.width == 3


@pytest.mark.slow
def test_two_real_trainings() -> None:
    """Few rows per user: a row of the table is not learnt, but the mean of all rows of a user says much."""
    random = np.random.default_rng(0)
    user = random.integers(0, 4000, 24_000)
    y = (random.random(24_000) < np.where(np.arange(4000) % 2, 0.85, 0.15)[user]).astype(int)
    table = pa.table({"user": user, "x": random.normal(size=24_000), "y": y})
    plain, counted = Features(), Features()
    for features in plain, counted:
        features.add("x", {"numeric": True}, "")
        features.add("user", {"dim": 4}, "")
    add_counts(counted, ["user"], "")

    def compose(files: dict[str, str], features: Features) -> str:
        lines = "\n".join(f"  {name}: {keys!s}" for name, (keys, _) in features.lines.items())
        lines = lines.replace("True", "true").replace("'", "")
        return (
            f"data: {{train: {files['train']}, split: {{modulo: 10, validation: [9]}}, batch_size: 256}}\n"
            f"labels: [y]\nfeatures:\n{lines}\nmodel: {{name: dcnv2, hidden: [16]}}\n"
        )

    found = tried(["user"], compose, {"train": table}, plain, counted)
    assert found.useful
    assert not found.failure
