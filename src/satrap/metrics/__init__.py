"""Streaming metrics of predictions: AUC, logloss, NE, calibration, grouped AUC; RMSE, MAE; accuracy."""

from satrap.metrics.binary import BinaryMetrics
from satrap.metrics.classes import ClassMetrics
from satrap.metrics.regression import RegressionMetrics
from satrap.metrics.tasks import Metrics, criterion

__all__ = ["BinaryMetrics", "ClassMetrics", "Metrics", "RegressionMetrics", "criterion"]
