"""Metrics of each process for monitoring systems, in OpenMetrics format.

`METRICS` lists all metrics with name, help and unit; `Endpoint` serves the current values over HTTP.
"""

from satrap.openmetrics.endpoint import Endpoint
from satrap.openmetrics.names import METRICS, Metric
from satrap.openmetrics.roles import (
    embedding_worker_values,
    loader_values,
    metrics_of,
    shard_values,
    worker_values,
)

__all__ = [
    "METRICS",
    "Endpoint",
    "Metric",
    "embedding_worker_values",
    "loader_values",
    "metrics_of",
    "shard_values",
    "worker_values",
]
