"""The scoring pass against pandas, scikit-learn and `satrap evaluate` on files made for the purpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score, roc_curve

from satrap import launch
from satrap.batch import Batch, Jagged
from satrap.config import load
from satrap.launch.datasets import open_part
from satrap.launch.scoring import load_predictor
from satrap.metrics.curves import ScoreCurves
from satrap.schema import Categorical, Label, Numeric, Schema
from satrap.tools.report_page import Scores
from satrap.tools.report_page.scores import _add, _permuted, groups, scores
from satrap.train import Predictor
from tests.launch.runs import RECIPE, frame, make_recipe

TAGGED = RECIPE.replace(
    "  price:", '  tags:  {dim: 4, multi: true, separator: "|"}\n  age:   {dim: 4, column: user}\n  price:'
)


def rows() -> pd.DataFrame:
    found = frame()
    random = np.random.default_rng(3)
    found["tags"] = ["|".join(f"t{t}" for t in random.integers(0, 9, n)) for n in random.integers(0, 4, 2000)]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("scores")
    launch.train(load(make_recipe(place, TAGGED, rows())), str(place / "run"))
    return place / "run"


@pytest.fixture(scope="module")
def predictor(folder: Path) -> Iterator[Predictor]:
    run = launch.RunFolder.open(folder)
    with closing(load_predictor(run, run.recipe())) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def found(folder: Path, predictor: Predictor) -> Scores:
    data = open_part(launch.RunFolder.open(folder).recipe(), predictor.schema, "validation")
    assert data is not None
    return scores(predictor, data, "validation")


def validation() -> pd.DataFrame:
    found = rows()
    return found[found.index % 10 == 8].reset_index(drop=True)


def predicted(folder: Path, table: pd.DataFrame) -> np.ndarray:  # type: ignore[type-arg]
    table.to_csv(folder / "in.csv", index=False)
    (folder / "out.csv").unlink(missing_ok=True)
    launch.predict(launch.RunFolder.open(folder), [str(folder / "in.csv")], folder / "out.csv")
    return pd.read_csv(folder / "out.csv")["clicked_probability"].to_numpy()


def test_roc_and_calibration_are_scikit_learns(folder: Path, found: Scores) -> None:
    table = validation()
    probabilities, labels = predicted(folder, table), table["clicked"]
    assert (found.part, found.rows, found.sampled) == ("validation", 200, 200)
    one = found.labels["clicked"]
    # Other batches round differently, so two rows may have equal scores in one of them.
    assert one.auc == pytest.approx(roc_auc_score(labels, probabilities), abs=1e-4)
    expected = np.stack(roc_curve(labels, probabilities, drop_intermediate=False)[:2], axis=1)
    distances = [np.abs(expected - point).max(axis=1).min() for point in one.roc]
    assert max(distances) < 1e-9
    observed, mean = calibration_curve(labels, probabilities, n_bins=20, strategy="quantile")
    assert np.array(one.calibration) == pytest.approx(np.stack([mean, observed], axis=1), abs=1e-5)


@pytest.mark.parametrize("column", ["user", "item", "tags", "price"])
def test_a_gain_is_that_of_a_file_with_the_column_shuffled(folder: Path, found: Scores, column: str) -> None:
    """Of `user` two features are made; the model knows it as long as one of them is as it was."""
    table = validation()
    order = np.random.default_rng(0).permutation(len(table))
    base = launch.evaluate(launch.RunFolder.open(folder), [written(folder, table)])
    table[column] = table[column].to_numpy()[order]
    shuffled = launch.evaluate(launch.RunFolder.open(folder), [written(folder, table)])
    for metric in ("auc", "logloss"):
        assert found.base[metric] == pytest.approx(base[metric], rel=1e-5)
        assert found.permuted[column][metric] == pytest.approx(shuffled[metric], rel=1e-5)
    assert shuffled["logloss"] != pytest.approx(base["logloss"], rel=1e-4)


def test_features_of_one_column_are_one_group() -> None:
    """It has the name of the feature that is called like the column, else of the first one."""
    schema = Schema(
        [],
        {
            "bins": Categorical(dim=2, column="price", boundaries=(1.0,)),
            "price": Numeric(),
            "hour": Numeric(column="at", time="hour"),
            "day": Categorical(dim=2, column="at", time="weekday"),
            "at": Numeric(column="other"),
            "both": Categorical(dim=2, cross=("price", "at")),
            "both_again": Categorical(dim=2, cross=("price", "at"), buckets=5),
        },
    )
    assert groups(schema) == {
        "price": ("bins", "price"),
        "hour": ("hour", "day"),
        "at": ("at",),
        "both": ("both", "both_again"),
    }


def written(folder: Path, table: pd.DataFrame) -> str:
    table.to_csv(folder / "rows.csv", index=False)
    return str(folder / "rows.csv")


def test_the_sample_is_bounded_and_the_curves_are_of_all_rows(folder: Path, predictor: Predictor) -> None:
    data = open_part(launch.RunFolder.open(folder).recipe(), predictor.schema, "train")
    assert data is not None
    found = scores(predictor, data, "train", sampled=50)
    assert (found.rows, found.sampled) == (1600, 50)


def test_curves_take_the_columns_and_known_rows_of_binary_labels() -> None:
    """Of three classes, a binary label and a number, the fourth of five outputs is the binary label's."""
    labels = [
        Label(name="c", kind="multiclass", classes=3),
        Label(name="b"),
        Label(name="r", kind="regression"),
    ]
    schema = Schema(labels, {"x": Numeric()})
    truth = np.array([[2, 1, 3.5], [0, 0, 7], [1, 1, 9]], np.float32)
    mask = np.array([[1, 1, 1], [1, 1, 1], [1, 0, 1]], bool)
    batch = Batch(3, {}, labels=truth, label_mask=mask, weights=np.array([2, 3, 5], np.float32))
    predictions = np.arange(15, dtype=np.float32).reshape(3, 5) / 16
    curves = {"b": ScoreCurves()}
    _add(curves, schema, batch, predictions)
    found = curves["b"].calibration()
    assert found.predicted.tolist() == [3 / 16, 8 / 16]
    assert (found.observed.tolist(), found.weight.tolist()) == ([1, 0], [2, 3])


def test_events_exchange_their_values_and_histories_keep_their_lengths() -> None:
    past = Categorical(dim=4, multi=True, pooling="none", sequence="past")
    schema = Schema([], {"item": past, "paid": Numeric(sequence="past")})
    offsets = np.array([0, 3, 3, 50])
    numbers = np.arange(50)
    batch = Batch(
        3,
        {"item": Jagged(numbers.astype(np.uint64), offsets)},
        events={"paid": Jagged(numbers.astype(np.float32), offsets)},
    )
    for name in ("item", "paid"):
        found = _permuted(batch, schema, name, np.array([2, 0, 1]))
        mixed, other = found.ids["item"], found.events["paid"]
        mixed, other = (mixed, other) if name == "item" else (other, mixed)
        assert mixed.values.tolist() != numbers.tolist() == other.values.tolist()
        assert sorted(mixed.values.tolist()) == numbers.tolist()
        assert mixed.offsets is offsets


def test_a_regression_has_gains_and_no_roc(tmp_path: Path) -> None:
    """Vectors are shuffled whole: the oracle shuffles their column in a file."""
    table = frame(600)
    table["made"] = [f"{a} {b}" for a, b in np.random.default_rng(2).normal(size=(600, 2)).round(3)]
    table["clicked"] = table["price"] * 2
    text = RECIPE.replace("labels: [clicked]", "labels: [{name: clicked, kind: regression}]").replace(
        "  price:", '  made:  {vector: 2, separator: " "}\n  price:'
    )
    launch.train(load(make_recipe(tmp_path, text, table)), str(tmp_path / "run"))
    run = launch.RunFolder.open(tmp_path / "run")
    with closing(load_predictor(run, run.recipe())) as predictor:
        data = open_part(run.recipe(), predictor.schema, "validation")
        assert data is not None
        found = scores(predictor, data, "validation")
    assert found.labels == {}
    kept = table[table.index % 10 == 8].reset_index(drop=True)
    kept["made"] = kept["made"].to_numpy()[np.random.default_rng(0).permutation(60)]
    shuffled = launch.evaluate(run, [written(tmp_path, kept)])
    assert found.permuted["made"]["rmse"] == pytest.approx(shuffled["rmse"], rel=1e-5)
    assert found.permuted["price"]["rmse"] > 1.2 * found.base["rmse"]
