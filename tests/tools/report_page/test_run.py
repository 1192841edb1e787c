import json
import math
from dataclasses import replace

from satrap.tools.report_page.run import RunReport, flat
from tests.tools.report_page.runs import full


def test_flat_names_values_by_their_path() -> None:
    values = {"model": {"name": "dnn", "hidden": [8, 4]}, "salt": 0, "labels": [{"name": "a"}], "empty": {}}
    assert flat(values) == {"model.name": "dnn", "model.hidden": [8, 4], "salt": 0, "labels": [{"name": "a"}]}


def test_a_report_is_json_without_nan() -> None:
    run = RunReport("a", metrics={"auc": math.nan, "x": [math.inf, 1.0]}, curves={"loss": [(1, math.nan)]})
    plain = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert plain["metrics"] == {"auc": None, "x": [None, 1.0]}
    assert plain["curves"] == {"loss": [[1, None]]}
    whole = json.loads(json.dumps(full().to_dict(), allow_nan=False))
    assert whole["tables"]["item"] == {"rows": 5, "bytes": 2048}
    assert whole["scores"]["permuted"]["user"] == {"auc": 0.55, "logloss": 0.65}


def test_floor() -> None:
    assert full().floor() == {"auc": 0.7}


def test_baseline() -> None:
    assert full().baseline() == {}
    assert replace(full(), recipe={"about.baseline.auc": 0.8}).baseline() == {"auc": 0.8}
