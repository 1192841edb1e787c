"""The rows that LightGBM gets, and its metrics; a class stands for the library."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss, r2_score, roc_auc_score

from satrap.config import load
from satrap.errors import ConfigError
from satrap.tools import baseline as module
from satrap.tools.baseline import baseline, check_baseline
from tests.launch.runs import RECIPE, frame, make_recipe

MORE = RECIPE.replace(
    "model:",
    """\
  often: {numeric: true, column: user, count: log1p}
  steps: {dim: 4, column: price, boundaries: [1, 5]}
model:""",
)


class Library:
    """Predicts the mean label of a row's user, or the shares of the classes; keeps what it gets."""

    def __init__(self) -> None:
        self.sets: list[Any] = []
        self.options: dict[str, Any] = {}

    def Dataset(  # noqa: N802
        self, rows: Any, labels: Any, weight: Any, categorical_feature: Any = ()
    ) -> Any:
        self.sets.append(
            SimpleNamespace(rows=rows.copy(), labels=labels, weights=weight, categories=categorical_feature)
        )
        return self.sets[-1]

    def early_stopping(self, rounds: int, verbose: bool) -> int:
        return rounds

    def train(self, options: Any, data: Any, rounds: int, valid_sets: Any, callbacks: Any) -> Any:
        assert (rounds, callbacks) == (1000, [50])
        self.options = options
        if options["objective"] == "multiclass":
            shares = np.bincount(data.labels.astype(int), minlength=options["num_class"]) / len(data.labels)
            return SimpleNamespace(predict=lambda rows: np.tile(shares, (len(rows), 1)))
        user = data.rows[:, 0].astype(int)
        means = np.bincount(user, data.labels) / np.bincount(user)

        def predict(rows: Any) -> Any:
            known = ~np.isnan(rows[:, 0])
            found = np.where(known, means[np.where(known, rows[:, 0], 0).astype(int)], 0.5)
            return found.clip(0.01, 0.99) if options["objective"] == "binary" else found

        return SimpleNamespace(predict=predict)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, "lightgbm", made)  # type: ignore[arg-type]
    monkeypatch.setattr(module, "find_spec", lambda _: made)
    return made


def test_it_gets_numbers_and_ids_of_the_same_rows(tmp_path: Path, library: Library) -> None:
    rows = frame(2000)
    rows.loc[8, "user"], rows.loc[3, "price"] = "only in a validation row", None
    found = baseline(load(make_recipe(tmp_path, MORE, rows)))
    train, held = library.sets
    place = np.arange(2000) % 10
    assert train.categories == [0, 1]
    assert library.options["objective"] == "binary"
    for part, kept in ((train, place < 8), (held, place == 8)):
        np.testing.assert_array_equal(part.labels, rows["clicked"][kept])
        np.testing.assert_allclose(part.rows[:, 2], rows["price"][kept], rtol=1e-6)
    assert np.isnan(held.rows[0, 0])
    assert len(np.unique(train.rows[:, 0])) == 30
    codes = dict(zip(rows["user"][place < 8], train.rows[:, 0], strict=True))
    assert [codes.get(user, np.nan) for user in rows["user"][place == 8]][1:] == held.rows[1:, 0].tolist()
    means = rows[place < 8].groupby("user")["clicked"].mean()
    expected = rows["user"][place == 8].map(means).fillna(0.5).clip(0.01, 0.99)
    assert found["auc"] == pytest.approx(roc_auc_score(held.labels, expected), abs=1e-3)
    assert found["logloss"] == pytest.approx(log_loss(held.labels, expected), abs=1e-3)


@pytest.mark.parametrize(
    ("keys", "objective"),
    [
        ("kind: regression", {"objective": "regression"}),
        ("kind: regression, loss: absolute", {"objective": "regression_l1"}),
        ("kind: regression, loss: poisson", {"objective": "poisson"}),
        ("kind: regression, loss: huber, delta: 2, mean: 1, std: 5", {"objective": "huber", "alpha": 10}),
    ],
)
def test_a_number_is_learned_with_the_labels_loss(
    tmp_path: Path, library: Library, keys: str, objective: dict[str, Any]
) -> None:
    rows = frame(2000)
    text = RECIPE.replace("[clicked]", f"[{{name: spent, column: price, {keys}}}]")
    found = baseline(load(make_recipe(tmp_path, text, rows)))
    assert objective.items() <= library.options.items()
    place = np.arange(2000) % 10
    means = rows["user"][place == 8].map(rows[place < 8].groupby("user")["price"].mean())
    truth = rows["price"][place == 8]
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((means - truth) ** 2)), rel=1e-4)
    assert found["mae"] == pytest.approx(np.mean(np.abs(means - truth)), rel=1e-4)
    assert found["r2"] == pytest.approx(r2_score(truth, means), abs=1e-4)


def test_rows_without_the_label_are_left_out_and_the_others_have_their_weights(
    tmp_path: Path, library: Library
) -> None:
    rows = frame(2000)
    random = np.random.default_rng(0)
    rows["known"], rows["weight"] = random.integers(0, 2, 2000), random.exponential(1, 2000).round(3)
    rows.loc[rows["known"] == 0, "price"] = 0.0
    label = "labels: [{name: spent, column: price, kind: regression, mask: known}]\nweight: weight"
    found = baseline(load(make_recipe(tmp_path, RECIPE.replace("labels: [clicked]", label), rows)))
    place, known = np.arange(2000) % 10, rows["known"] == 1
    for part, kept in zip(library.sets, (known & (place < 8), known & (place == 8)), strict=True):
        np.testing.assert_allclose(part.labels, rows["price"][kept], rtol=1e-6)
        np.testing.assert_allclose(part.weights, rows["weight"][kept], rtol=1e-6)
    held, train = rows[known & (place == 8)], rows[known & (place < 8)]
    errors = held["user"].map(train.groupby("user")["price"].mean()) - held["price"]
    assert found["rmse"] == pytest.approx(np.sqrt(np.average(errors**2, weights=held["weight"])), rel=1e-4)


def test_classes_are_learned_together(tmp_path: Path, library: Library) -> None:
    rows = frame(2000)
    text = RECIPE.replace(
        "[clicked]", "[{name: sort, column: color, kind: multiclass, classes: [red, blue, grey]}]"
    )
    rows["color"] = np.random.default_rng(0).choice(["grey", "blue", "red"], 2000, p=[0.2, 0.5, 0.3])
    found = baseline(load(make_recipe(tmp_path, text, rows)))
    assert {"objective": "multiclass", "num_class": 3}.items() <= library.options.items()
    place = np.arange(2000) % 10
    shares = rows["color"][place < 8].value_counts(normalize=True)
    truth = rows["color"][place == 8]
    assert found["accuracy"] == pytest.approx((truth == "blue").mean(), abs=1e-4)
    assert found["logloss"] == pytest.approx(-np.log(truth.map(shares)).mean(), rel=1e-4)


def test_what_it_cannot_do_is_refused(
    tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = RECIPE.replace("  split: {modulo: 10, validation: [8], test: [9]}\n", "")
    with pytest.raises(ConfigError, match="needs validation rows"):
        baseline(load(make_recipe(tmp_path, text)))
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="not installed"):
        check_baseline()
