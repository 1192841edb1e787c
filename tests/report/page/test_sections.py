import re
from dataclasses import replace

import pytest

from satrap.report.page import sections
from satrap.report.page.run import RunReport, Scores
from tests.report.page.runs import full


def test_gains_are_differences_of_metrics_largest_first() -> None:
    other = replace(full("b"), scores=None)
    found = sections.gains([full(), other], "auc", 1)
    assert list(found) == ["user", "item"]
    assert found["user"] == [pytest.approx(0.2), None]
    assert found["item"] == [pytest.approx(-0.01), None]
    assert sections.gains([full()], "logloss", -1)["user"] == [pytest.approx(0.15)]
    assert sections.gains([full()], "rmse", -1) == {}


def captions(run: RunReport) -> list[str]:
    return re.findall(r"<figcaption>(.*?)</figcaption>", "".join(sections.over_steps([run])))


def test_training_and_validation_share_a_chart_and_other_metrics_get_their_own() -> None:
    curves = {"loss": [(1, 0.5)], "validation/auc": [(1, 0.7)], "validation/gauc": [(1, 0.6)]}
    curves |= {"validation/logloss": [(1, 0.6)], "validation/ne": [(1, 0.9)], "validation/a/auc": [(1, 0.7)]}
    assert captions(RunReport("a", curves=curves)) == ["Logloss", "AUC", "GAUC"]
    curves = {"loss": [(1, 2)], "validation/loss": [(1, 2)], "rmse": [(1, 2)], "validation/mae": [(1, 2)]}
    assert captions(RunReport("a", curves=curves)) == ["Loss", "RMSE", "MAE"]
    classes = {"loss": [(1, 2)], "validation/logloss": [(1, 2)], "validation/accuracy": [(1, 0.5)]}
    assert captions(RunReport("a", curves=classes)) == ["Logloss", "Accuracy"]
    assert captions(RunReport("a")) == []


def test_shares_of_staleness() -> None:
    [_, grid] = sections.staleness([full()])
    assert re.findall(r"(\d) missed: ([\d.]+)", grid) == [("0", "0.25"), ("2", "0.75")]
    assert sections.staleness([RunReport("a")]) == []


def test_the_pass_says_which_rows_and_how_many() -> None:
    [text, grid] = sections.roc_and_calibration([full()])
    assert "runs/a: 100 validation rows" in text
    assert "ROC of clicked: AUC 0.7500" in grid
    [text, _] = sections.gain_by_feature([full()])
    assert "80 of 100 validation rows, drawn at random." in text
    run = full()
    assert run.scores is not None
    [text, _] = sections.gain_by_feature([replace(run, scores=replace(run.scores, sampled=100))])
    assert "all 100 validation rows." in text
    scores = Scores(
        "test", 9, {}, 9, {"rmse": 2.0, "loss": 1.0, "r2": 0.5}, {"x": {"rmse": 2.5, "loss": 1.5}}
    )
    [_, grid] = sections.gain_by_feature([RunReport("a", scores=scores)])
    assert re.findall(r"<figcaption>(.*?)</figcaption>", grid) == ["Rise of RMSE", "Rise of loss"]
    assert grid.count("x: 0.5") == 2
    assert sections.gain_by_feature([RunReport("a")]) == sections.roc_and_calibration([RunReport("a")]) == []
