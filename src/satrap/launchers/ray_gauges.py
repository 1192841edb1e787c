"""The metrics of a role among those of Ray: its dashboard and its metrics port show them."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any

READ_SECONDS = 5.0
"""Seconds between two readings of an endpoint; Ray passes gauges on about every ten."""

_OF_PROCESS = "process_resident_memory_bytes"


class Gauges:
    """Shows each sample of an OpenMetrics endpoint as a gauge of Ray, with the labels of its role.

    Counters are gauges here, too, since Ray's counters start at 0 and would be wrong after a pause: `rate()`
    works on them all the same. Names are those of the endpoint, to which Ray adds `ray_` in front. Of the
    process itself only the memory is shown, as `satrap_process_resident_memory_bytes`.

    Args:
        gauge: `ray.util.metrics.Gauge`.
        labels: of every sample.
    """

    def __init__(self, gauge: Callable[..., Any], labels: Mapping[str, str]) -> None:
        self._gauge, self._labels = gauge, dict(labels)
        self._gauges: dict[str, Any] = {}

    def show(self, text: str) -> None:
        """Take the text of an endpoint, in Prometheus' format."""
        from prometheus_client.parser import text_string_to_metric_families

        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = f"satrap_{sample.name}" if sample.name == _OF_PROCESS else sample.name
                if name.startswith("satrap_") and name != "satrap_role_info":
                    self._set(name, family.documentation, sample.labels, sample.value)

    def _set(self, name: str, about: str, labels: Mapping[str, str], value: float) -> None:
        tags = {**labels, **self._labels}
        if name not in self._gauges:
            self._gauges[name] = self._gauge(name, about, tuple(tags))
        self._gauges[name].set(value, tags)

    def follow(self, address: str) -> None:
        """Read the endpoint at HOST:PORT from now on, in a thread that ends with the process."""
        threading.Thread(target=self._follow, args=(address,), name="satrap-gauges", daemon=True).start()

    def _follow(self, address: str) -> None:
        while True:
            try:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=READ_SECONDS) as answer:
                    self.show(answer.read().decode())
            except (OSError, HTTPException, ValueError):
                pass  # a role that is busy, or ends while it answers, is noticed elsewhere
            time.sleep(READ_SECONDS)
