"""Publishes a role's metrics through Ray, whose dashboard and metrics port show them."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any

READ_SECONDS = 5.0
"""Seconds between two reads of an endpoint; Ray exports gauges about every ten seconds."""

_OF_PROCESS = "process_resident_memory_bytes"


class Gauges:
    """Publishes each sample of an OpenMetrics endpoint as a Ray gauge, with the labels of its role.

    Counters are also gauges, because Ray's counters start at 0 and would be wrong after a pause; `rate()`
    still works. Names are the endpoint's names, with the prefix `ray_` from Ray. The only process metric is
    memory, as `satrap_process_resident_memory_bytes`.

    Args:
        gauge: `ray.util.metrics.Gauge`.
        labels: labels of every sample.
    """

    def __init__(self, gauge: Callable[..., Any], labels: Mapping[str, str]) -> None:
        self._gauge, self._labels = gauge, dict(labels)
        self._gauges: dict[str, Any] = {}

    def show(self, text: str) -> None:
        """Publish the text of an endpoint, in Prometheus' format."""
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
                pass  # busy and ended roles are reported elsewhere
            time.sleep(READ_SECONDS)
