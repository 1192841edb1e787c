"""Shows and records a run: the progress line, `metrics.jsonl`, TensorBoard curves."""

from satrap.report.curves import Curves, curves_available
from satrap.report.history import History
from satrap.report.terminal import ProgressLine

__all__ = ["Curves", "History", "ProgressLine", "curves_available"]
