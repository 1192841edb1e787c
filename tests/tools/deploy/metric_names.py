"""Which names and labels of a query satrap exports."""

from __future__ import annotations

import re

from prometheus_client import CollectorRegistry, ProcessCollector

from satrap.openmetrics import METRICS

ENDINGS = {
    "counter": ("_total",),
    "gauge": ("",),
    "info": ("_info",),
    "summary": ("_sum", "_count"),
    "histogram": ("_bucket", "_sum", "_count"),
}
EXPORTED = {metric.name + ending for metric in METRICS for ending in ENDINGS[metric.kind]}
LABELS = {label for metric in METRICS for label in metric.labels} | {"le"}
TARGET_LABELS = {"run", "role", "number", "instance"}
"""That the list of targets gives, see `satrap.launch.folder.prometheus_targets`."""


def of_processes() -> set[str]:
    """The names of every process's own figures."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return {sample.name for metric in registry.collect() for sample in metric.samples}


def unknown(query: str) -> set[str]:
    """Return metrics and labels of a query that no endpoint of satrap has."""
    plain = re.sub(r'"[^"]*"', '""', query)
    metrics = set(re.findall(r"\b(?:satrap|process)_\w+", plain))
    matchers = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", plain)
    grouped = [name for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", plain) for name in group.split(",")]
    labels = {name.strip() for name in (*matchers, *grouped)}
    return (metrics - EXPORTED - of_processes()) | (labels - LABELS - TARGET_LABELS)
