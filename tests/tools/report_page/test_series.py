import itertools
from pathlib import Path

import pytest

from satrap.report import History
from satrap.tools.report_page.series import MOST_POINTS, curves, read_lines
from satrap.train.progress.observer import Progress


def test_curves_of_a_history(tmp_path: Path) -> None:
    """100 samples a step; 10 seconds for the first 100 steps, then 20 for as many."""
    history = History(tmp_path / "metrics.jsonl", every=50)
    for step, seconds in ((50, 5.0), (100, 10.0), (150, 20.0), (200, 30.0)):
        progress = Progress(step=step, samples=100 * step, samples_per_second=100 * step / seconds)
        progress.loss = 1 / step
        history.step(progress)
    history.evaluated({"auc": 0.7, "logloss": 0.6, "samples": 5, "liked/auc": 0.8}, progress)
    found = curves(read_lines(history.path))
    assert found["loss"] == [(50, 0.02), (100, 0.01), (150, 1 / 150), (200, 0.005)]
    assert [speed for _, speed in found["samples_per_second"]] == pytest.approx([1000, 1000, 500, 500])
    assert found["validation/auc"] == [(200, 0.7)]
    assert found["validation/liked/auc"] == [(200, 0.8)]
    assert "auc" not in found  # NaN in every line
    assert "validation/samples" not in found


def test_a_torn_line_and_foreign_ones_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == []
    path.write_text('{"event": "step", "step": 1}\n[1]\n{"event": "st')
    assert read_lines(path) == [{"event": "step", "step": 1}]


def test_a_clock_that_goes_back_after_a_resume_makes_no_negative_speed() -> None:
    steps = [(50, 10.0), (100, 20.0), (100, 2.0), (150, 12.0)]
    lines = [
        {"event": "step", "step": s, "samples": 100 * s, "samples_per_second": 100 * s / t} for s, t in steps
    ]
    assert [speed for _, speed in curves(lines)["samples_per_second"]] == pytest.approx([500, 500, 500])


def test_the_speed_is_that_of_lines_with_more_samples_and_more_time() -> None:
    """Of samples and seconds: a first line, fewer samples, as many, as many seconds, more of both."""
    pairs = [(64, 8), (32, 16), (32, 32), (128, 32), (192, 48)]
    lines = [
        {"event": "step", "step": i, "samples": samples, "samples_per_second": samples / seconds}
        for i, (samples, seconds) in enumerate(pairs)
    ]
    lines.insert(2, {"event": "step", "step": 9, "samples": 99, "samples_per_second": None})
    assert curves(lines)["samples_per_second"] == [(0, 8), (4, 4)]


def test_every_validation_is_a_point() -> None:
    lines = [{"event": "validation", "step": step, "epoch": 1, "auc": step / 8} for step in (2, 4)]
    assert curves(lines) == {"validation/auc": [(2, 0.25), (4, 0.5)]}


@pytest.mark.parametrize(("lines", "points"), [(600, 600), (601, 301), (1200, 600), (1201, 401)])
def test_a_curve_has_600_points_at_most(lines: int, points: int) -> None:
    found = curves([{"event": "step", "step": i, "loss": 1.0} for i in range(lines)])["loss"]
    assert (len(found), found[-1]) == (points, (lines - 1, 1.0))


def test_a_long_history_is_thinned_and_keeps_its_last_point() -> None:
    lines = [{"event": "step", "step": i, "loss": float(i), "samples": i} for i in range(1, 2001)]
    points = curves(lines)["loss"]
    assert MOST_POINTS / 2 < len(points) <= MOST_POINTS
    assert points[-1] == (2000, 2000)
    assert len({b[0] - a[0] for a, b in itertools.pairwise(points)}) == 1
