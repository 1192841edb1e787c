"""`satrap tune`: trains variants of a recipe and keeps the best one; needs Optuna."""

from satrap.tools.tune.search import BEST, SearchLimits, tune
from satrap.tools.tune.study import StudyResult
from satrap.tools.tune.words import result_lines
from satrap.train.progress.progress_line import LiveLine

__all__ = ["BEST", "LiveLine", "SearchLimits", "StudyResult", "result_lines", "tune"]
