import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from satrap.tools.report_page import sections
from satrap.tools.report_page.run import RunReport, Scores
from tests.tools.report_page.runs import full


def test_gains_are_differences_of_metrics_largest_first() -> None:
    other = replace(full("b"), scores=None)
    found = sections.gains([full(), other], "auc", 1)
    assert list(found) == ["user", "item"]
    assert found["user"] == [pytest.approx(0.2), None]
    assert found["item"] == [pytest.approx(-0.01), None]
    assert sections.gains([full()], "logloss", -1)["user"] == [pytest.approx(0.15)]
    assert sections.gains([full()], "rmse", -1) == {}
    scores = Scores("test", 9, base={"auc": 0.5}, permuted={"new": {"auc": 0.4}, "odd": {"loss": 1.0}})
    several = sections.gains([full(), RunReport("c", scores=scores)], "auc", 1)
    assert list(several) == ["user", "new", "item"]
    assert several["new"] == [None, pytest.approx(0.1)]


@pytest.mark.parametrize("metric", ["auc", "accuracy", "rmse", "logloss", "loss"])
def test_a_gain_is_what_gets_worse(metric: str) -> None:
    worse = 1.5 if metric in ("auc", "accuracy") else 2.5
    scores = Scores("test", 9, {}, 9, {metric: 2.0}, {"x": {metric: worse}})
    [text, grid] = sections.gain_by_feature([RunReport("a", scores=scores), RunReport("b")])
    assert re.findall(r"<title>(x[^<]*)</title>", grid) == ["x", "x: 0.5"]
    assert text.endswith("a: all 9 test rows.</p>")


def test_two_gains_are_enough() -> None:
    base = {"rmse": 1.0, "accuracy": 0.5, "auc": 0.5}
    scores = Scores("test", 9, {}, 9, base, {"x": base})
    [_, grid] = sections.gain_by_feature([RunReport("a", scores=scores)])
    assert re.findall(r"<figcaption>(.*?)</figcaption>", grid) == ["Loss of AUC", "Loss of accuracy"]


def test_time_by_stage() -> None:
    runs = [full(), RunReport("b", metrics={"traffic": {"stage_seconds": None}})]
    [_, grid] = sections.stages(runs)
    assert re.findall(r"<title>(\w+: [^<]*)</title>", grid) == ["read: 1", "dense: 4"]
    assert sections.stages(runs[1:]) == []


def figures(found: Sequence[str]) -> list[dict[str, object]]:
    """Return of each chart its caption, its legend, and how many lines are dashed or have dots."""
    return [
        {
            "caption": re.findall("<figcaption>(.*?)</figcaption>", one)[0],
            "legend": re.findall(r"solid var\((.*?)\)\"></i> (.*?)<", one.replace("dashed var", "solid var")),
            "dashed": one.count('class="dashed"'),
            "dots": one.count("<circle"),
            "square": 'viewBox="0 0 460 418"' in one,
            "axes": re.findall('class="axis middle">([a-zA-Z/ ]+)<', one),
        }
        for one in "".join(found).split("<figure>")[1:]
    ]


def test_several_runs_share_a_chart() -> None:
    names = [("--c1", "runs/a training"), ("--c1", "runs/a validation")]
    names += [("--c2", "runs/b training"), ("--c2", "runs/b validation")]
    logloss, speed = figures(sections.over_steps([RunReport("x"), full(), full("runs/b")]))
    assert logloss == {
        "caption": "Logloss",
        "legend": names,
        "dashed": 2,
        "dots": 2,
        "square": False,
        "axes": ["step", "logloss"],
    }
    assert (speed["caption"], speed["axes"]) == ("Samples/s", ["step", "samples/s"])
    assert speed["legend"] == [("--c1", "runs/a"), ("--c2", "runs/b")]
    [one, _] = figures(sections.over_steps([full()]))
    assert one["legend"] == [("--c0", "training"), ("--c0", "validation")]
    alone = figures(sections.over_steps([RunReport("a", curves={"loss": [(1, 0.5)]})]))
    assert [(one["caption"], one["dashed"]) for one in alone] == [("Loss", 0)]


def test_roc_and_calibration_of_several_runs() -> None:
    run = full("runs/b", auc=0.5)
    assert run.scores is not None
    curve = replace(run.scores.labels["clicked"], roc=[])
    other = replace(run, scores=replace(run.scores, labels={"liked": curve}))
    found = figures(sections.roc_and_calibration([RunReport("x"), full(), run, other]))
    assert [one["caption"] for one in found] == [
        "ROC of clicked: 2 runs",
        "Calibration of clicked",
        "Calibration of liked",
    ]
    assert found[0]["legend"] == [("--c1", "runs/a, AUC 0.7500"), ("--c2", "runs/b, AUC 0.5000")]
    assert [(one["dots"], one["square"]) for one in found] == [(0, True), (4, True), (2, True)]
    assert [one["axes"] for one in found[:2]] == [
        ["false positive rate", "true positive rate"],
        ["mean prediction", "share of positives"],
    ]


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
    none = RunReport("a", metrics={"staleness": {"1": 0}})
    [_, grid] = sections.staleness([none, full()])
    assert re.findall(r"(\d) missed: ([\d.]+)", grid) == [("0", "0.25"), ("1", "0"), ("2", "0.75")]
    many = RunReport("a", metrics={"staleness": {str(i): 1 for i in range(26)}})
    assert "Own updates missed: the first 24 of 26<" in sections.staleness([many])[1]


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
    assert re.findall(r"<figcaption>(.*?)</figcaption>", grid) == ["Increase of RMSE", "Increase of loss"]
    assert grid.count("x: 0.5") == 2
    assert sections.gain_by_feature([RunReport("a")]) == sections.roc_and_calibration([RunReport("a")]) == []


def test_features_that_are_shuffled_together_are_named() -> None:
    run = full()
    assert run.scores is not None
    assert len(sections.gain_by_feature([run])) == 2
    scores = replace(run.scores, groups={"user": ["user", "user_bins"]})
    [text, folded, _] = sections.gain_by_feature([replace(run, scores=scores)])
    assert "from one column are shuffled together" in text
    assert "<li>user: user, user_bins</li>" in folded
