"""The endpoint as a monitoring system sees it, parsed by the format's own strict parser."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from typing import Any

import pytest

from satrap.errors import ConfigError
from satrap.openmetrics import METRICS, Endpoint
from satrap.openmetrics import endpoint as served
from satrap.openmetrics.endpoint import CONNECTIONS
from tests.support.scraping import answer, everything, scrape

VALUES: dict[str, Any] = {
    "info": {"role": "worker", "index": "3"},
    "counter": 7,
    "gauge": 0.25,
    "summary": (4, 2.5),
    "histogram": Counter({0: 1, 4: 10, 500: 2}),
}


def values() -> dict[str, Any]:
    """A value for every metric there is."""
    return {m.name: {"x": VALUES[m.kind]} if m.labels else VALUES[m.kind] for m in METRICS}


def test_every_metric_is_served_in_valid_openmetrics() -> None:
    with Endpoint("127.0.0.1", 0, values) as endpoint:
        found = scrape(endpoint.address)
    for metric in METRICS:
        label = " x" if metric.labels else ""
        match metric.kind:
            case "counter":
                assert found[f"{metric.name}_total{label}"] == 7
            case "gauge":
                assert found[metric.name + label] == 0.25
            case "summary":
                assert (found[f"{metric.name}_count"], found[f"{metric.name}_sum"]) == (4, 2.5)
            case "histogram":
                buckets = [v for k, v in found.items() if k.startswith(f"{metric.name}_bucket")]
                assert buckets == [1] * 4 + [11] * (len(metric.bounds) - 4) + [13]
                assert found[f"{metric.name}_count{label}"] == 13
                assert found[f"{metric.name}_sum{label}"] == 40 + 1000
    assert found["satrap_role_info 3 worker"] == 1
    assert found["process_cpu_seconds_total"] > 0


def test_values_are_taken_when_somebody_asks_and_only_then() -> None:
    asked: list[str] = []

    def counted() -> dict[str, Any]:
        asked.append(threading.current_thread().name)
        return {"satrap_worker_steps": len(asked)}

    with Endpoint("127.0.0.1", 0, counted) as endpoint:
        assert asked == []
        assert [scrape(endpoint.address)["satrap_worker_steps_total"] for _ in range(3)] == [1, 2, 3]
        assert threading.current_thread().name not in asked
    with pytest.raises(urllib.error.URLError):
        scrape(endpoint.address)


def test_what_has_no_value_is_left_out() -> None:
    with Endpoint("127.0.0.1", 0, dict) as endpoint:
        assert [name for name in scrape(endpoint.address) if name.startswith("satrap")] == []


def test_a_port_in_use_is_the_users_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            Endpoint("127.0.0.1", port, dict)
    with pytest.raises(ConfigError, match="port 0 for a free port"):
        Endpoint("127.0.0.1", 65536, dict)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /?name[]=x HTTP/1.0\r\nHost: x\r\n\r\n", b"200"),
        (b"GET /ready HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        (b"\x00\xff\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
    ],
)
def test_other_requests_are_answered_with_an_error(request_: bytes, status: bytes) -> None:
    with Endpoint("127.0.0.1", 0, dict) as endpoint:
        assert answer(endpoint.address, request_).startswith(b"HTTP/1.1 " + status)


def test_a_request_without_end_is_given_up_after_some_bytes() -> None:
    with Endpoint("127.0.0.1", 0, dict) as endpoint:
        host, _, port = endpoint.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
            line = b"x: " + b"y" * 10_000 + b"\r\n"
            with pytest.raises(ConnectionError):
                client.sendall(line * 10_000)
        assert scrape(endpoint.address)


def test_slow_clients_are_given_up_for_others() -> None:
    with Endpoint("127.0.0.1", 0, dict) as endpoint, contextlib.ExitStack() as stack:
        host, _, port = endpoint.address.rpartition(":")
        threads = threading.active_count()
        slow = []
        for _ in range(CONNECTIONS * 3):
            slow.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=30)))
            with contextlib.suppress(ConnectionError):
                slow[-1].sendall(b"G")
        assert scrape(endpoint.address)
        assert threading.active_count() <= threads + CONNECTIONS
        with contextlib.suppress(ConnectionError):
            assert slow[0].recv(100) == b""


def test_a_client_that_says_nothing_is_given_up_after_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "REQUEST_SECONDS", 0.05)
    monkeypatch.setattr(served, "_TICK", 0.02)
    with Endpoint("127.0.0.1", 0, dict) as endpoint:
        assert answer(endpoint.address, b"GET /") == b""  # closed, without an answer


def test_without_descriptors_the_oldest_client_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "REQUEST_SECONDS", 60.0)
    with Endpoint("127.0.0.1", 0, dict) as endpoint, contextlib.ExitStack() as stack:
        host, _, port = endpoint.address.rpartition(":")
        slow = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30)) for _ in range(2)
        ]
        while len(endpoint._open) < 2:
            time.sleep(0.01)
        client = stack.enter_context(socket.socket())
        client.settimeout(30)
        free, limits = os.dup(0), resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            client.connect((host, int(port)))
            client.sendall(b"GET /ready HTTP/1.1\r\n\r\n")
            assert everything(client).startswith(b"HTTP/1.1 200 OK")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert slow[0].recv(1) == b""
        slow[1].setblocking(False)
        with pytest.raises(BlockingIOError):
            slow[1].recv(1)


def test_an_endpoint_that_is_closed_leaves_nothing_open() -> None:
    gc.collect()
    before, times = len(os.listdir("/proc/self/fd")), 10
    for _ in range(times):
        endpoint = Endpoint("127.0.0.1", 0, dict)
        host, _, port = endpoint.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            while not endpoint._open:
                time.sleep(0.01)
            endpoint.close()
            assert client.recv(1) == b""
    # Threads of earlier tests may close some of theirs meanwhile.
    assert len(os.listdir("/proc/self/fd")) < before + times / 2


def test_a_port_can_be_used_again_at_once() -> None:
    """The side that ends a connection keeps its port for a while, and that is the endpoint."""
    with Endpoint("127.0.0.1", 0, dict) as endpoint:
        assert answer(endpoint.address, b"GET /ready HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200")
        port = int(endpoint.address.rpartition(":")[2])
    with Endpoint("127.0.0.1", port, dict) as again:
        assert again.address == endpoint.address


def test_clients_that_say_nothing_hold_up_nobody() -> None:
    with Endpoint("127.0.0.1", 0, dict) as endpoint, contextlib.ExitStack() as stack:
        host, _, port = endpoint.address.rpartition(":")
        for _ in range(3):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            assert scrape(endpoint.address)


def test_those_who_wait_share_what_is_taken() -> None:
    asked: list[int] = []
    gate = threading.Event()

    def slowly() -> dict[str, Any]:
        asked.append(1)
        gate.wait(30)
        return {"satrap_worker_steps": len(asked)}

    with Endpoint("127.0.0.1", 0, slowly) as endpoint, contextlib.ExitStack() as stack:
        host, _, port = endpoint.address.rpartition(":")

        def ask() -> socket.socket:
            client = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            return client

        clients = [ask()]
        while not asked:
            time.sleep(0.01)
        clients += [ask() for _ in range(19)]
        gate.set()
        found = [
            float(everything(client).split(b"satrap_worker_steps_total ")[-1].split()[0])
            for client in clients
        ]
    assert sorted(found)[0] == 1
    assert len(found) == 20
    assert len(asked) < 10


def test_who_asks_at_once_is_answered_however_many_only_connect() -> None:
    """A crowd that fills every place before the endpoint has looked costs a complete request nothing."""
    gate = threading.Event()

    def slowly() -> dict[str, Any]:
        gate.wait(30)
        return {}

    with Endpoint("127.0.0.1", 0, slowly) as endpoint, contextlib.ExitStack() as stack:
        host, _, port = endpoint.address.rpartition(":")
        first = socket.create_connection((host, int(port)), timeout=30)
        stack.enter_context(first).sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        time.sleep(0.5)  # now it waits for the values
        honest = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
        honest.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        for _ in range(3 * CONNECTIONS):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30)).sendall(b"G")
        gate.set()
        assert first.recv(100).startswith(b"HTTP/1.1 200")
        assert honest.recv(100).startswith(b"HTTP/1.1 200")


def test_values_that_raise_end_nothing() -> None:
    found: list[dict[str, Any]] = []

    def failing() -> dict[str, Any]:
        if not found:
            found.append({})
            raise KeyError("once")
        return found[0]

    with Endpoint("127.0.0.1", 0, failing) as endpoint:
        failed = answer(endpoint.address, b"GET / HTTP/1.1\r\n\r\n")
        assert failed.startswith(b"HTTP/1.1 500")
        assert failed.endswith(b"\r\n\r\nKeyError")
        assert answer(endpoint.address, b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_a_large_answer_to_a_slow_reader_is_sent_whole() -> None:
    role = "x" * (16 << 20)  # more than the system takes at once
    with Endpoint("127.0.0.1", 0, lambda: {"satrap_role": {"role": role}}) as endpoint:
        host, _, port = endpoint.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            time.sleep(0.5)
            text = everything(client)
    head, _, body = text.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}\r\n".encode() in head
    assert role.encode() in body


def test_clients_that_go_away_leave_nothing_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    with Endpoint("127.0.0.1", 0, dict) as endpoint:
        host, _, port = endpoint.address.rpartition(":")
        for _ in range(50):
            with socket.create_connection((host, int(port)), timeout=30) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.sendall(b"GET / HT")
        assert scrape(endpoint.address)
    assert capfd.readouterr() == ("", "")


def test_others_reach_it_at_an_address_of_this_machine() -> None:
    with Endpoint("0.0.0.0", 0, dict) as endpoint:
        host, port = endpoint.reached.split(":")
        assert endpoint.address == f"0.0.0.0:{port}"
        assert host != "0.0.0.0"
        assert scrape(endpoint.reached)["process_start_time_seconds"] > 0
    with Endpoint("127.0.0.1", 0, dict) as endpoint:
        assert endpoint.reached == endpoint.address
    assert [served._joined("::1", 7), served._joined("host", 7)] == ["[::1]:7", "host:7"]


def test_without_a_network_it_is_reached_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "ELSEWHERE", ("::1", 9))  # no address of this family
    assert [served._here(host) for host in ("0.0.0.0", "::", "host")] == ["127.0.0.1", "127.0.0.1", "host"]
