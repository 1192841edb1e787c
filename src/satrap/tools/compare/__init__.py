"""Compares runs: metrics with their spread over seeds, and paired tests on the same rows."""

from satrap.tools.compare.comparison import PairedTest, RunComparison, compare
from satrap.tools.compare.seeds import mean_and_spread, runs_of, seed_folders

__all__ = ["PairedTest", "RunComparison", "compare", "mean_and_spread", "runs_of", "seed_folders"]


def __dir__() -> list[str]:
    return sorted(__all__)
