import json
from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from satrap.train import Observer, Progress
from tests.launch.runs import RECIPE, frame, lines_of, make_recipe


class Stop(Observer):
    """Presses Ctrl-C at a step."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, progress: Progress) -> None:
        if progress.step == self.at:
            raise KeyboardInterrupt


def test_interrupted_run_keeps_the_model(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path), ["training.patience="])
    with pytest.raises(launch.InterruptedRunError, match="interrupted after step 20"):
        launch.train(recipe, str(tmp_path / "run"), observers=[Stop(20)])
    folder = launch.RunFolder.open(tmp_path / "run")
    assert set(launch.evaluate(folder)) >= {"auc", "logloss"}
    metrics = json.loads(folder.metrics_file.read_text())
    assert metrics["stopped"] == "interrupted"
    assert metrics["auc"] == metrics["validation"]["auc"]
    assert [line["event"] for line in lines_of(folder.history_file)] == ["validation"]


def test_without_test_rows_validation_metrics_are_on_top(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path), ["data.split={modulo: 10, validation: [8]}", "training.epochs=1"])
    outcome = launch.train(recipe, str(tmp_path / "run"))
    assert outcome.test == {}
    assert outcome.metrics["auc"] == outcome.result.metrics["auc"]
    assert launch.evaluate(outcome.folder)["auc"] == pytest.approx(outcome.result.metrics["auc"])


def test_two_labels(tmp_path: Path) -> None:
    text = RECIPE.replace("[clicked]", "[clicked, {name: dear, column: price, threshold: 10}]")
    outcome = launch.train(load(make_recipe(tmp_path, text)), str(tmp_path / "run"))
    assert {"auc", "clicked/auc", "dear/auc"} <= set(outcome.metrics)
    frame(50).drop(columns="clicked").to_csv(tmp_path / "new.csv", index=False)
    assert launch.predict(outcome.folder, [str(tmp_path / "new.csv")], tmp_path / "out.csv") == 50
    header = (tmp_path / "out.csv").read_text().splitlines()[0]
    assert header.endswith('"clicked_probability","dear_probability"')
