"""`satrap tune`: trains variants of a recipe and keeps the best one; needs Optuna."""

from satrap.train.progress_line import LiveLine
from satrap.tune.search import BEST, Limits, tune
from satrap.tune.study import Found
from satrap.tune.words import result_lines

__all__ = ["BEST", "Found", "Limits", "LiveLine", "result_lines", "tune"]
