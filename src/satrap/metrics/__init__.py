"""Streaming metrics of binary predictions: AUC, logloss, NE, calibration, grouped AUC."""

from satrap.metrics.binary import BinaryMetrics

__all__ = ["BinaryMetrics"]
