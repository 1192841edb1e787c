"""An HTTP endpoint for monitoring systems, which reads values only on request."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from email import message_from_bytes
from importlib.metadata import version
from time import monotonic, sleep
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, core
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from satrap.errors import ConfigError
from satrap.openmetrics.names import METRICS, Metric
from satrap.rpc.transport.poller import READ, WRITE, Poller

Values = Mapping[str, Any]
"""Name of a metric -> its value, or label value -> value: a number; for a summary (count, sum); for a
histogram {observed value: count}."""


CONNECTIONS = 32
"""Most concurrent connections; another connection closes the oldest."""

REQUEST_BYTES, REQUEST_SECONDS = 8192, 3.0
"""Maximum size of a request, and maximum time for its arrival."""

ELSEWHERE = ("192.0.2.1", 9)
"""An unassigned address, RFC 5737."""

_TICK = 0.25
"""Seconds between checks for connections that take too long."""


class _Caller:
    """A connection with a non-blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket, self.until = sock, monotonic() + REQUEST_SECONDS
        self.head, self.answer = b"", memoryview(b"")


class Endpoint:
    """Serves the metrics of one role at http://HOST:PORT/metrics, in a thread that ends with the process.

    Clients can read counters and speeds, but no ids, rows, keys or file names. `CONNECTIONS`, `REQUEST_BYTES`
    and `REQUEST_SECONDS` limit the cost of clients: one thread serves them all and reads the values once for
    all waiting requests. The format is OpenMetrics for clients that accept it, else Prometheus' older text
    format.

    ```python
    with Endpoint("127.0.0.1", 0, lambda: shard_values(server.service.statistics())) as endpoint:
        print(endpoint.address)
    ```

    Port 0 selects a free port; `address` is HOST:PORT. `reached` is the same for other machines: with an
    address of this machine instead of 0.0.0.0 or "::". The thread calls `values` for each response; if it
    raises, the response is status 500 with the type of the error. Raises `ConfigError` if the address is
    unusable.

    A GET of /ready returns status 200, or 503 while `busy` returns a reason; default: always 200.
    """

    def __init__(
        self, host: str, port: int, values: Callable[[], Values], *, busy: Callable[[], str] = lambda: ""
    ) -> None:
        self._busy = busy
        self._registry = CollectorRegistry()
        self._registry.register(_Values(values))
        ProcessCollector(registry=self._registry)
        try:
            self._socket = _listening(host, port)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"the metrics endpoint cannot listen on {host}:{port}: {error}",
                fix="choose another address (cluster.metrics_port of a recipe), or port 0 for a free port",
            ) from error
        port = self._socket.getsockname()[1]
        self.address, self.reached = _joined(host, port), _joined(_here(host), port)
        self._open: dict[_Caller, None] = {}
        self._asking: list[_Caller] = []
        self._poller: Poller[_Caller | None] = Poller()
        self._poller.watch(self._socket, READ, None)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="satrap-metrics", daemon=True)
        self._thread.start()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self._stopping = True
        self._poller.ring()
        self._thread.join()

    def _run(self) -> None:
        """Answer each connection once, without blocking on any."""
        while not self._stopping:
            for caller, _ in self._poller.wait(_TICK):
                if caller is None:
                    self._accept()
                elif caller in self._open:
                    self._go_on(caller)
            self._answer()
            for caller in [caller for caller in self._open if caller.until < monotonic()]:
                self._end(caller)
        for caller in list(self._open):
            self._end(caller)
        self._poller.close()
        self._socket.close()

    def _accept(self) -> None:
        """Accept connections; if there are too many, close the oldest, which is the slowest."""
        for number in range(CONNECTIONS):
            try:
                sock, _ = self._socket.accept()
            except OSError as error:
                # No descriptors are left. The system reports this even without waiting connections, so after
                # an accepted one, only the next round is conclusive.
                if error.errno not in (errno.EAGAIN, errno.ECONNABORTED) and not number:
                    self._end_oldest()
                    sleep(_TICK / 10)
                return
            if len(self._open) >= CONNECTIONS:
                self._end_oldest()
            sock.setblocking(False)
            self._go_on(_Caller(sock))

    def _go_on(self, caller: _Caller) -> None:
        """Receive or send without blocking."""
        self._open[caller] = None
        try:
            if caller.answer:
                caller.answer = caller.answer[caller.socket.send(caller.answer) :]
                if not caller.answer:
                    caller.socket.shutdown(socket.SHUT_WR)
                    self._end(caller)
                    return
            else:
                data = caller.socket.recv(REQUEST_BYTES)
                caller.head += data
                if b"\r\n\r\n" in caller.head or not data or len(caller.head) > REQUEST_BYTES:
                    self._asking.append(caller)
                    del self._open[caller]  # answered in this round, so it must not be closed as the oldest
                    return
        except BlockingIOError:
            pass
        except OSError:
            self._end(caller)
            return
        self._poller.watch(caller.socket, WRITE if caller.answer else READ, caller)

    def _answer(self) -> None:
        """Answer all complete requests with the same metrics; the values are read once per format."""
        encoded: dict[str, bytes] = {}

        def content(accept: str) -> tuple[bytes, str]:
            encode, kind = choose_encoder(accept)
            if kind not in encoded:
                encoded[kind] = encode(self._registry)
            return encoded[kind], kind

        for caller in self._asking:
            caller.answer = memoryview(_answer(caller.head, content, self._busy))
            caller.until = monotonic() + REQUEST_SECONDS
            self._go_on(caller)
        self._asking.clear()

    def _end_oldest(self) -> None:
        for caller in self._open:
            self._end(caller)
            return

    def _end(self, caller: _Caller) -> None:
        del self._open[caller]
        self._poller.watch(caller.socket, 0, caller)
        caller.socket.close()


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _here(host: str) -> str:
    """Return the host, or this machine's outgoing address if the host means all addresses."""
    if host not in ("0.0.0.0", "::"):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(ELSEWHERE)  # sends nothing
        except OSError:
            return "127.0.0.1"  # no network
        return str(way.getsockname()[0])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(4 * CONNECTIONS)
        listener.setblocking(False)
    except (OSError, OverflowError):
        listener.close()
        raise
    return listener


def _answer(head: bytes, content: Callable[[str], tuple[bytes, str]], busy: Callable[[], str]) -> bytes:
    """Answer a GET of /metrics, / or /ready; answer an error to any other or incomplete request.

    `content` receives the accepted types, and returns the body and its type; `busy` returns the reason why
    the process is not ready.
    """
    request, _, rest = head.partition(b"\r\n")
    words = request.split(b" ")
    body, kind = b"", "text/plain"
    if b"\r\n\r\n" not in head or len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        status = "400 Bad Request"
    elif words[0] != b"GET":
        status = "405 Method Not Allowed"
    elif (path := words[1].partition(b"?")[0]) == b"/ready":
        reason = busy()
        body, status = (reason or "ready").encode(), "503 Service Unavailable" if reason else "200 OK"
    elif path not in (b"/metrics", b"/"):
        status = "404 Not Found"
    else:
        try:
            accept = str(message_from_bytes(rest)["accept"] or "")
            (body, kind), status = content(accept), "200 OK"
        except Exception as error:  # noqa: BLE001 -- only this client fails
            body, status = type(error).__name__.encode(), "500 Internal Server Error"
    start = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return start.encode() + b"Connection: close\r\n\r\n" + body


class _Values(Collector):
    """Converts values to metric families on request of the registry."""

    def __init__(self, values: Callable[[], Values]) -> None:
        self._values = values

    def describe(self) -> Iterator[core.Metric]:
        """Return nothing, so that the registry does not read values at construction."""
        return iter(())

    def collect(self) -> Iterator[core.Metric]:
        """Yield a family for each metric that has a value."""
        values = self._values()
        for metric in METRICS:
            if metric.name in values:
                yield _family(metric, values[metric.name])


_FAMILIES: dict[str, Any] = {
    "counter": core.CounterMetricFamily,
    "gauge": core.GaugeMetricFamily,
    "summary": core.SummaryMetricFamily,
    "histogram": core.HistogramMetricFamily,
}


def _family(metric: Metric, value: Any) -> core.Metric:
    if metric.kind == "info":
        return core.InfoMetricFamily(metric.name, metric.help, value={**value, "version": version("satrap")})
    family = _FAMILIES[metric.kind](metric.name, metric.help, unit=metric.unit, labels=metric.labels)
    by_label: dict[tuple[str, ...], Any] = {(): value}
    if metric.labels:
        by_label = {(label,): inner for label, inner in value.items()}
    for labels, inner in by_label.items():
        if metric.kind == "summary":
            family.add_metric(labels, *inner)
        elif metric.kind == "histogram":
            total = sum(observed * count for observed, count in inner.items())
            family.add_metric(labels, _buckets(metric.bounds, inner), total)
        else:
            family.add_metric(labels, inner)
    samples: core.Metric = family
    return samples


def _buckets(bounds: tuple[float, ...], counts: Mapping[float, int]) -> list[tuple[str, float]]:
    """Return (upper bound, observations up to it)."""
    up_to = [(str(end), sum(n for observed, n in counts.items() if observed <= end)) for end in bounds]
    return [*up_to, ("+Inf", sum(counts.values()))]
