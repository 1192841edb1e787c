"""Ranking metrics of a run: those of scikit-learn for its predictions, whatever the processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import ndcg_score

from satrap import launch
from satrap.config import load
from satrap.errors import ConfigError, DataError
from tests.config.recipes import line_of
from tests.launch.runs import RECIPE, frame, make_recipe
from tests.support.clusters import COLLECTIVE, SERVERS

GROUPED = RECIPE.replace("labels: [clicked]", "labels: [clicked]\ngroup: user").replace(
    "epochs: 2}", "epochs: 2, ranking: {at: [3, 5]}, monitor: ndcg@5}"
)


def held(part: int) -> pd.DataFrame:
    table = frame()
    return table[np.arange(len(table)) % 10 == part]


def ndcg(rows: pd.DataFrame, scores: npt.NDArray[np.float32], k: int) -> float:
    rows = rows.assign(score=scores)
    each = [group for _, group in rows.groupby("user") if group.clicked.any()]
    return float(np.mean([ndcg_score([group.clicked], [group.score], k=k) for group in each]))


@pytest.mark.parametrize(
    "processes",
    [
        [],
        pytest.param([*SERVERS, "cluster.workers=2"], marks=pytest.mark.cluster),
        pytest.param([*COLLECTIVE, "cluster.workers=2"], marks=[pytest.mark.cluster, pytest.mark.slow]),
    ],
    ids=["alone", "servers", "collective"],
)
def test_a_run_reports_the_ndcg_of_its_predictions(tmp_path: Path, processes: list[str]) -> None:
    path = make_recipe(tmp_path, GROUPED)
    outcome = launch.train(load(path, processes), str(tmp_path / "run"))
    rows, scored = held(9), tmp_path / "scored.parquet"
    rows.to_csv(tmp_path / "test.csv", index=False)
    launch.predict(outcome.folder, [str(tmp_path / "test.csv")], scored)
    scores = pq.read_table(scored)["clicked_probability"].to_numpy()
    whole = json.loads(outcome.folder.metrics_file.read_text())
    for k in (3, 5):
        assert whole["test"][f"ndcg@{k}"] == pytest.approx(ndcg(rows, scores, k), abs=1e-6)
    assert whole["ndcg@5"] == whole["test"]["ndcg@5"]
    assert whole["test"]["queries"] + whole["test"]["queries_skipped"] == rows.user.nunique()
    best = max(metrics["ndcg@5"] for metrics in outcome.result.history)
    assert whole["validation"]["ndcg@5"] == best
    assert launch.evaluate(outcome.folder) == pytest.approx(whole["test"], rel=1e-6)


def test_other_lengths_can_be_chosen_for_a_trained_model(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, GROUPED.replace(", ranking: {at: [3, 5]}, monitor: ndcg@5", ""))
    folder = launch.train(load(path), str(tmp_path / "run")).folder
    assert not [name for name in launch.evaluate(folder) if "@" in name]
    found = launch.evaluate(folder, overrides=["training.ranking={at: [2]}"])
    assert {name.partition("@")[2] for name in found if "@" in name} == {"2"}
    with pytest.raises(DataError, match="first 500 samples of a group"):
        launch.evaluate(folder, overrides=["training.ranking={at: [500]}"])


@pytest.mark.parametrize(
    ("old", "new", "error", "message", "line"),
    [
        ("group: user\n", "", ConfigError, "ranking needs a group column", "ranking:"),
        ("at: [3, 5]", "at: [0]", ConfigError, "must be different whole numbers >= 1, got [0]", "ranking:"),
        ("ndcg@5", "ndcg@4", ConfigError, "training.monitor", "ranking:"),
        ("at: [3, 5]", "at: [5, 90]", DataError, "first 90 samples of a group", ""),
    ],
)
def test_bad_input_is_one_error_before_the_training(
    tmp_path: Path, old: str, new: str, error: type[Exception], message: str, line: str
) -> None:
    text = GROUPED.replace(old, new)
    with pytest.raises(error) as caught:
        launch.train(load(make_recipe(tmp_path, text)), str(tmp_path / "run"))
    assert message in str(caught.value)
    assert str(caught.value).count("\n") <= 3
    assert not line or f"clicks.yaml:{line_of(text, line)}" in str(caught.value)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
