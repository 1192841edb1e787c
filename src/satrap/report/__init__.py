"""Shows and records a run: the progress line, `metrics.jsonl`, TensorBoard curves, experiment trackers."""

from satrap.report.curves import Curves, curves_available
from satrap.report.history import History
from satrap.report.terminal import ProgressLine
from satrap.report.trackers import MLflowTracker, Tracker, WandbTracker

__all__ = [
    "Curves",
    "History",
    "MLflowTracker",
    "ProgressLine",
    "Tracker",
    "WandbTracker",
    "curves_available",
]
