from pathlib import Path

from satrap.report import Curves, curves_available
from satrap.train.observer import Progress


def test_curves_can_be_read_back(tmp_path: Path) -> None:
    assert curves_available()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = Curves(tmp_path, every=2)
    progress = Progress()
    curves.started(progress)
    for step in range(1, 5):
        progress.step, progress.loss, progress.rows = step, 1.0 / step, 10 * step
        curves.step(progress)
    curves.evaluated({"auc": 0.75}, progress)
    curves.close()
    curves.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(2, 0.5), (4, 0.25)]
    assert [(e.step, e.value) for e in events.Scalars("store/rows")] == [(2, 20.0), (4, 40.0)]
    assert [(e.step, e.value) for e in events.Scalars("validation/auc")] == [(4, 0.75)]
