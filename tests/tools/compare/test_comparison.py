"""Runs are compared with the first one, over seeds and over rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from satrap import launch
from satrap.config import load
from satrap.errors import ConfigError
from satrap.tools.compare import compare, mean_and_spread, seed_folders
from satrap.tools.compare.comparison import _losses, _of_label
from tests.launch.runs import RECIPE, frame, make_recipe

CHANGES = {"a": ["training.mode=sync"], "b": ["training.mode=sync", "model.hidden=[16]"]}
SEEDS = 3


def trained(folder: Path, recipe: Path, changes: list[str]) -> str:
    for path, of_seed in seed_folders(load(recipe, changes), str(folder), SEEDS).items():
        launch.train(of_seed, path)
    return str(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("compare")
    recipe = make_recipe(folder, rows=frame(1500))
    return [trained(folder / name, recipe, changes) for name, changes in CHANGES.items()]


def metrics_of(path: str) -> list[dict[str, float]]:
    folders = [launch.RunFolder(Path(path) / f"seed-{seed}") for seed in range(1, SEEDS + 1)]
    return [folder.metrics_of("test") for folder in folders]


def predictions(path: str, rows: pd.DataFrame, folder: Path) -> np.ndarray:
    rows.to_csv(folder / "in.csv", index=False)
    out = folder / f"{Path(path).name}.csv"
    launch.predict(launch.RunFolder.open(Path(path) / "seed-1"), [str(folder / "in.csv")], out)
    return pd.read_csv(out)["clicked_probability"].to_numpy()


def test_means_spreads_and_tests_are_those_of_the_metrics_and_rows(runs: list[str], tmp_path: Path) -> None:
    said = list[str]()
    found = compare(runs, notice=said.append)
    assert (found.part, found.warnings, found.notes) == ("test", [], [])
    assert said == [f"{path}/seed-1: scoring the test rows" for path in runs]
    first, second = map(metrics_of, runs)
    for path, every in zip(runs, (first, second), strict=True):
        assert found.seeds[path] == [1, 2, 3]
        assert found.metrics[path]["auc"] == mean_and_spread(every)["auc"]
    tests = found.tests[runs[1]]
    over_seeds = {test.metric: test.difference for test in tests if test.by == "paired t, 3 seeds"}
    expected = stats.ttest_rel([m["auc"] for m in second], [m["auc"] for m in first])
    assert over_seeds["AUC"].p == pytest.approx(expected.pvalue, rel=1e-8)

    rows = frame(1500).iloc[9::10]
    scores = [predictions(path, rows, tmp_path) for path in runs]
    truth = rows["clicked"].to_numpy()
    over_rows = {test.metric: test.difference for test in tests if "rows" in test.by}
    assert {test.by for test in tests} == {"paired t, 3 seeds", "DeLong, 150 rows", "paired t, 150 rows"}
    losses = [-np.log(np.where(truth == 1, score, 1 - score)) for score in scores]
    expected = stats.ttest_rel(losses[1], losses[0])
    assert over_rows["logloss"].p == pytest.approx(expected.pvalue, rel=1e-3)
    difference = second[0]["auc"] - first[0]["auc"]
    assert over_rows["AUC"].mean == pytest.approx(difference, abs=1e-6)
    assert over_rows["AUC"].low < difference < over_rows["AUC"].high


def test_fewer_seeds_and_no_scores(runs: list[str]) -> None:
    found = compare(runs, seeds=2, score=False)
    assert {test.by for test in found.tests[runs[1]]} == {"paired t, 2 seeds"}
    one = compare([f"{path}/seed-1" for path in runs], score=False)
    assert one.tests == {f"{runs[1]}/seed-1": []}


def test_runs_on_other_rows_or_labels_are_not_tested_over_rows(runs: list[str], tmp_path: Path) -> None:
    single = ["training.mode=sync", "training.epochs=1"]
    other = make_recipe(tmp_path, rows=frame(700, seed=9))
    launch.train(load(other, single), str(tmp_path / "rows"))
    label = make_recipe(
        tmp_path / "label", RECIPE.replace("[clicked]", "[{name: dear, column: price, threshold: 10}]")
    )
    launch.train(load(label, single), str(tmp_path / "labels"))
    for what in ("rows", "labels"):
        found = compare([f"{runs[0]}/seed-1", str(tmp_path / what)])
        assert f"evaluated on different {what}" in found.warnings[0]
        assert found.tests[str(tmp_path / what)] == []


def test_a_model_that_cannot_score_is_a_note(runs: list[str], tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, rows=frame(1500))
    outcome = launch.train(load(recipe, CHANGES["a"]), str(tmp_path / "run"))
    (tmp_path / "rows.csv").unlink()
    found = compare([f"{runs[0]}/seed-1", str(outcome.folder)])
    assert "no test over rows, because they could not be scored" in found.notes[0]
    assert found.tests[str(outcome.folder)] == []


def test_one_run_or_a_run_without_metrics_is_refused(runs: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least two runs"):
        compare([runs[0], runs[0]])
    launch.RunFolder.claim(load(make_recipe(tmp_path)), tmp_path / "run")
    with pytest.raises(ConfigError, match="has no validation metrics"):
        compare([runs[0], str(tmp_path / "run")])


@pytest.mark.parametrize(
    ("label", "truth", "scores", "expected"),
    [
        ({"kind": "regression"}, [1.0, 2.0], [[1.5], [2.0]], [0.25, 0.0]),
        (
            {"kind": "multiclass", "classes": ("a", "b", "c")},
            [2, 0],
            [[0.2, 0.3, 0.5], [1, 0, 0]],
            [np.log(2), 0],
        ),
        ({}, [1, 0], [[0.25], [0.75]], [np.log(4), np.log(4)]),
    ],
)
def test_losses_of_rows(label: dict[str, Any], truth: Any, scores: Any, expected: Any) -> None:
    import satrap

    one = satrap.Label(name="y", **label)
    found = _losses(one, np.array(truth, np.float32), np.array(scores, np.float64))
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("truth", [[1, 0, 0, 0], [0, 1, 1, 1]])
def test_a_single_row_of_a_label_has_no_test_of_aucs(truth: list[int]) -> None:
    """DeLong's test has no variance over a single row, and would find p 0."""
    import satrap

    scores = [np.array([[0.1], [0.2], [0.3], [0.4]]), np.array([[0.9], [0.2], [0.3], [0.5]])]
    label = satrap.Label(name="y")
    assert [test.metric for test in _of_label(label, np.array(truth, np.float32), scores, "")] == ["logloss"]
