import math
from pathlib import Path

from satrap.report import History
from satrap.report.history import finite
from satrap.train.progress.observer import Progress
from tests.disks import fill, small_disk
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
    assert History(tmp_path / "other").every == 50


def test_finite() -> None:
    assert finite({"a": math.inf, 3: {"b": math.nan, "c": 1}}) == {"a": None, "3": {"b": None, "c": 1}}


def test_a_full_disk_leaves_whole_lines_and_is_said_once_until_there_is_room(tmp_path: Path) -> None:
    said: list[str] = []
    with small_disk(tmp_path / "disk") as disk:
        history = History(disk / "metrics.jsonl", notice=said.append)
        history.write("test", {"number": 0})
        fill(disk / "ballast")  # the page that holds the first line still takes some
        number = 0
        while len(said) < 1 and number < 1000:
            history.write("test", {"number": (number := number + 1)})
        history.write("test", {})
        assert len(said) == 1
        assert "No space left on device" in said[0]
        (disk / "ballast").unlink()
        history.write("test", {"number": -1})
        written = [*range(number), -1]
        assert [line["number"] for line in lines_of(history.path)] == written
        fill(disk / "ballast")
        for _ in range(1000):
            history.write("test", {"number": -2})
        assert len(said) == 2
