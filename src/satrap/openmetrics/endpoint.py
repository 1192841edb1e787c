"""An HTTP endpoint that a monitoring system reads; values are taken when it asks, never before."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from socketserver import StreamRequestHandler, ThreadingTCPServer
from time import monotonic
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
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
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from satrap.errors import ConfigError
from satrap.openmetrics.names import METRICS, Metric

Values = Mapping[str, Any]
"""Name of a metric -> its value, or label value -> value: a number; of a summary (count, sum); of a histogram
{observed: how often}."""


CONNECTIONS = 32
"""At a time; for one more, that which has lasted longest is closed."""

REQUEST_BYTES, REQUEST_SECONDS = 8192, 3.0
"""That a request may have, and take to come."""

_ROOM_SECONDS = 0.2
"""For a connection that is closed to make room."""


class Endpoint:
    """Serves the metrics of one role at http://HOST:PORT/metrics, in a thread that ends with the process.

    Whoever reaches the port can read counters and speeds, nothing else: no ids, rows, keys or file names.
    What a client may cost is bounded: `CONNECTIONS`, `REQUEST_BYTES`, `REQUEST_SECONDS`; values are taken
    once for all who wait. The format is OpenMetrics for those who ask for it, else Prometheus' older text
    format.

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
            self._server = _Server(host, port, registry)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"the metrics endpoint cannot listen on {host}:{port}: {error}",
                fix="choose another address, or port 0 for a free port",
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="satrap-metrics", daemon=True)
        self._thread.start()
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._server.server_address[1]}"

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingTCPServer):
    """A thread for each of a few connections, each of which is answered once."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 2 * CONNECTIONS

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._registry, self._taking = registry, threading.Lock()
        self._taken: dict[str, tuple[float, bytes]] = {}
        self._room, self._open = threading.BoundedSemaphore(CONNECTIONS), dict[Any, None]()
        super().__init__((host, port), _Handler)

    def content(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics as of now, or later, and their type; those who wait share what is taken."""
        asked = monotonic()
        encode, kind = choose_encoder(accept)
        with self._taking:
            at, content = self._taken.get(kind, (-1.0, b""))
            if at < asked:
                at, content = monotonic(), encode(self._registry)
                self._taken[kind] = at, content
        return content, kind

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; if there is no room for it, make some, since the oldest is the slowest."""
        if not self._room.acquire(blocking=False):
            self._end_oldest()
            if not self._room.acquire(timeout=_ROOM_SECONDS):
                self.shutdown_request(request)
                return
        self._open[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system gives no more threads
            self._open.pop(request, None)
            self._room.release()
            self.shutdown_request(request)

    def _end_oldest(self) -> None:
        with suppress(OSError, StopIteration, RuntimeError):  # it may be ending at this moment
            next(iter(self._open)).shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.pop(request, None)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave it at that: a client that goes away must not fill the log."""


class _Handler(StreamRequestHandler):
    """Reads one request and answers it."""

    server: _Server

    def handle(self) -> None:
        """Answer a GET of /metrics or / with the metrics, and anything else with an error."""
        head = self._head()
        request, _, rest = head.partition(b"\r\n")
        words = request.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self._answer("400 Bad Request")
        elif words[0] != b"GET":
            self._answer("405 Method Not Allowed")
        elif words[1].partition(b"?")[0] not in (b"/metrics", b"/"):
            self._answer("404 Not Found")
        else:
            self._answer("200 OK", *self.server.content(_header(rest, "accept")))

    def _head(self) -> bytes:
        """Return what came up to the first empty line; nothing if it is too much or takes too long."""
        head, until = b"", monotonic() + REQUEST_SECONDS
        while b"\r\n\r\n" not in head:
            self.request.settimeout(max(until - monotonic(), 0.001))
            data = self.request.recv(REQUEST_BYTES)
            if not data or len(head := head + data) > REQUEST_BYTES:
                return b""
        return head

    def _answer(self, status: str, content: bytes = b"", kind: str = "text/plain") -> None:
        self.request.settimeout(REQUEST_SECONDS)
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
        self.request.sendall(head.encode() + b"Connection: close\r\n\r\n" + content)


def _header(lines: bytes, name: str) -> str:
    """Return the value of a header, "" without."""
    for line in lines.decode("latin-1").split("\r\n"):
        key, _, value = line.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""


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
