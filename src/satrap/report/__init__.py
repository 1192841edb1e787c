"""Records of a run: `metrics.jsonl`, TensorBoard curves, experiment trackers; also `ProgressLine`."""

from satrap.report.curves import Curves, curves_available
from satrap.report.history import History
from satrap.report.trackers import MLflowTracker, Tracker, WandbTracker
from satrap.train.progress.progress_line import ProgressLine

__all__ = [
    "Curves",
    "History",
    "MLflowTracker",
    "ProgressLine",
    "Tracker",
    "WandbTracker",
    "curves_available",
]


def __dir__() -> list[str]:
    return sorted(__all__)
