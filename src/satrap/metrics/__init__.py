"""Streaming metrics: AUC, logloss, NE, calibration, GAUC; RMSE, MAE; accuracy; ranking; and user metrics."""

from satrap.metrics.binary import BinaryMetrics
from satrap.metrics.classes import ClassMetrics
from satrap.metrics.own import OwnMetrics
from satrap.metrics.ranking import GroupRankingMetrics, RankingMetrics
from satrap.metrics.regression import RegressionMetrics
from satrap.metrics.tasks import Metrics, criterion

__all__ = [
    "BinaryMetrics",
    "ClassMetrics",
    "GroupRankingMetrics",
    "Metrics",
    "OwnMetrics",
    "RankingMetrics",
    "RegressionMetrics",
    "criterion",
]


def __dir__() -> list[str]:
    return sorted(__all__)
