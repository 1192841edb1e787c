from pathlib import Path

import pytest

from satrap.report import Curves, curves_available
from satrap.train.progress.observer import Progress, Result


def test_curves_can_be_read_back(tmp_path: Path) -> None:
    assert curves_available()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = Curves(tmp_path, every=2)
    progress = Progress()
    curves.started(progress)
    for step in range(1, 5):
        progress.step, progress.loss, progress.rows = step, 1.0 / step, 10 * step
        progress.auc, progress.memory_bytes, progress.samples_per_second = 0.5 + step / 16, step << 20, 100.0
        curves.step(progress)
    curves.evaluated({"auc": 0.75}, progress)
    curves.close()
    curves.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert found == {
        "train/loss": [(2, 0.5), (4, 0.25)],
        "train/auc": [(2, 0.625), (4, 0.75)],
        "speed/samples_per_second": [(2, 100.0), (4, 100.0)],
        "store/rows": [(2, 20.0), (4, 40.0)],
        "store/bytes": [(2, 2 << 20), (4, 4 << 20)],
        "validation/auc": [(4, 0.75)],
    }


def test_a_resumed_run_drops_the_points_after_its_snapshot(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, steps in ((0, (3, 4, 5, 6)), (4, (7,))):
        curves = Curves(tmp_path, every=1)
        curves.started(Progress(step=start))
        for step in steps:
            curves.step(Progress(step=step, loss=0.5))
        ended = {"steps": 4, "samples": 4, "seconds": 1.0, "samples_per_second": 4.0, "refused": 0}
        curves.finished(Result({}, (), stopped="", **ended))  # type: ignore[arg-type]
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [3, 4, 7]
    assert Curves(tmp_path).every == 20


def test_curves_that_cannot_be_written_end_and_the_run_does_not(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "file").touch()
    curves = Curves(tmp_path / "file" / "curves", every=1, notice=said.append)
    curves.started(Progress())
    curves.step(Progress(step=1))
    curves.evaluated({"auc": 0.75}, Progress(step=1))
    curves.close()
    assert len(said) == 1
    assert "TensorBoard curves end here" in said[0]


def test_curves_end_where_the_disk_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    curves = Curves(tmp_path, every=1, notice=said.append)
    curves.started(Progress())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(curves._writer, "add_scalar", full)
    for step in (1, 2):
        curves.step(Progress(step=step))
    curves.evaluated({"auc": 0.75}, Progress(step=2))
    curves.close()
    assert len(said) == 1
    assert "No space left on device" in said[0]
