"""An HTTP endpoint that a monitoring system reads; values are taken when it asks, never before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.registry import Collector

from satrap.errors import ConfigError
from satrap.openmetrics.names import METRICS, Metric

Values = Mapping[str, Any]
"""Name of a metric -> its value, or label value -> value: a number; of a summary (count, sum); of a histogram
{observed: how often}."""


class Endpoint:
    """Serves the metrics of one role at http://HOST:PORT/metrics, in a thread that ends with the process.

    Whoever reaches the port can read counters and speeds, nothing else: no ids, rows, keys or file names. The
    format is OpenMetrics for those who ask for it, else Prometheus' older text format.

    ```python
    with Endpoint("127.0.0.1", 0, lambda: shard_values(server.statistics())) as endpoint:
        print(endpoint.address)
    ```

    Args:
        host: to listen on.
        port: 0 takes a free one.
        values: called when somebody asks, in the thread that answers.

    Attributes:
        address: HOST:PORT.

    Raises:
        ConfigError: the address cannot be used.
    """

    def __init__(self, host: str, port: int, values: Callable[[], Values]) -> None:
        registry = CollectorRegistry()
        registry.register(_Values(values))
        ProcessCollector(registry=registry)
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"the metrics endpoint cannot listen on {host}:{port}: {error}",
                fix="choose another address, or port 0 for a free port",
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._server.server_port}"

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Values(Collector):
    """Turns values into families when the registry asks."""

    def __init__(self, values: Callable[[], Values]) -> None:
        self._values = values

    def describe(self) -> Iterator[Family]:
        """Nothing is known beforehand; the registry must not ask for values to find out."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """Yield a family for each metric that has a value."""
        values = self._values()
        for metric in METRICS:
            if metric.name in values:
                yield _family(metric, values[metric.name])


def _family(metric: Metric, value: Any) -> Family:
    by_label = value if metric.labels else {(): value}
    arguments: dict[str, Any] = {"labels": metric.labels}
    if metric.kind == "info":
        return InfoMetricFamily(metric.name, metric.help, value={**value, "version": version("satrap")})
    if metric.kind == "summary":
        summary = SummaryMetricFamily(metric.name, metric.help, unit=metric.unit, **arguments)
        for label, (count, total) in by_label.items():
            summary.add_metric(_labels(label), count, total)
        return summary
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, unit=metric.unit, **arguments)
        for label, counts in by_label.items():
            total = sum(observed * count for observed, count in counts.items())
            histogram.add_metric(_labels(label), _buckets(metric.bounds, counts), total)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, unit=metric.unit, **arguments)
    for label, number in by_label.items():
        family.add_metric(_labels(label), number)
    return family


def _labels(label: str | tuple[()]) -> tuple[str, ...]:
    return (label,) if isinstance(label, str) else label


def _buckets(bounds: tuple[float, ...], counts: Mapping[float, int]) -> list[tuple[str, float]]:
    """Return (upper bound, observations up to it)."""
    ends = [*bounds, float("inf")]
    return [
        (
            "+Inf" if end == float("inf") else str(end),
            sum(n for observed, n in counts.items() if observed <= end),
        )
        for end in ends
    ]
