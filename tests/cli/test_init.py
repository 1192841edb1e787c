from __future__ import annotations

import json
from pathlib import Path

import pytest
from sklearn.metrics import roc_auc_score

from satrap.config import load
from tests.cli.command import satrap
from tests.init.frames import clicks


def test_from_a_file_to_metrics_with_nothing_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = clicks(2500)
    frame.to_csv("clicks.csv", index=False)
    answer = satrap("init", "clicks.csv", "--label", "y")
    assert answer.code == 0, answer.err
    assert "recipe.yaml: 2,500 rows; 3 columns used, 4 left out" in answer.out
    assert "satrap train recipe.yaml" in answer.out
    trained = satrap("train", "recipe.yaml", "--output", "run")
    assert trained.code == 0, trained.err
    test = json.loads(Path("run/metrics.json").read_text())["test"]
    linear = roc_auc_score(frame["y"], frame["price"])
    assert test["auc"] > max(linear, 0.8)  # the steps of the price are not to be had from a line


def test_a_recipe_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clicks(200).to_csv("clicks.csv", index=False)
    Path("recipe.yaml").write_text("mine")
    satrap("init", "clicks.csv", "--label", "y").assert_refused("recipe.yaml is there already", "--force")
    assert Path("recipe.yaml").read_text() == "mine"
    assert satrap("init", "clicks.csv", "--label", "y", "--force").code == 0
    assert load("recipe.yaml").sections.labels


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    satrap("init", "none.csv", "--label", "y").assert_refused("the file does not exist")
    Path("empty.csv").write_text("")
    satrap("init", "empty.csv", "--label", "y").assert_refused("the file is empty")
    Path("data").write_text("y,x\n0,1\n")
    satrap("init", "data", "--label", "y").assert_refused("cannot tell the format", "--format")
    assert not Path("recipe.yaml").exists()
