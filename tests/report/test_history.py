import math
from pathlib import Path

from satrap.report import History
from satrap.report.history import finite
from satrap.train.observer import Progress
from tests.launch.runs import lines_of


def test_one_json_object_per_line_without_nan(tmp_path: Path) -> None:
    history = History(tmp_path / "metrics.jsonl", every=2)
    progress = Progress()
    for step in range(1, 6):
        progress.step = step
        history.step(progress)
    assert not math.isfinite(progress.loss)
    history.evaluated({"auc": 0.7, "gauc": math.nan}, progress)
    history.write("test", {"auc": 0.8})
    lines = lines_of(tmp_path / "metrics.jsonl")
    assert [(line["event"], line.get("step")) for line in lines] == [
        ("step", 2),
        ("step", 4),
        ("validation", 5),
        ("test", None),
    ]
    assert lines[0]["loss"] is None
    assert lines[2] == {"event": "validation", "step": 5, "epoch": 0, "auc": 0.7, "gauc": None}
    assert (history.steps, history.validation["auc"]) == (5, 0.7)


def test_finite() -> None:
    assert finite({"a": math.inf, 3: {"b": math.nan, "c": 1}}) == {"a": None, "3": {"b": None, "c": 1}}
