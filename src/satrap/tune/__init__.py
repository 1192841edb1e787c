"""`satrap tune`: trains variants of a recipe and keeps the best one; needs Optuna."""

from satrap.train.progress_line import LiveLine
from satrap.tune.search import BEST, SearchLimits, tune
from satrap.tune.study import StudyResult
from satrap.tune.words import result_lines

__all__ = ["BEST", "LiveLine", "SearchLimits", "StudyResult", "result_lines", "tune"]
