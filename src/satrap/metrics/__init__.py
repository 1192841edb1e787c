"""Streaming metrics: AUC, logloss, NE, calibration, GAUC; RMSE, MAE; accuracy; and user metrics."""

from satrap.metrics.binary import BinaryMetrics
from satrap.metrics.classes import ClassMetrics
from satrap.metrics.own import OwnMetrics
from satrap.metrics.regression import RegressionMetrics
from satrap.metrics.tasks import Metrics, criterion

__all__ = ["BinaryMetrics", "ClassMetrics", "Metrics", "OwnMetrics", "RegressionMetrics", "criterion"]


def __dir__() -> list[str]:
    return sorted(__all__)
