"""Reads an endpoint of metrics as Prometheus does, and with bare bytes."""

from __future__ import annotations

import contextlib
import socket
import urllib.request
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families


def scrape(address: str) -> dict[str, Any]:
    """Name of a sample with its labels -> value."""
    request = urllib.request.Request(
        f"http://{address}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        text = answer.read().decode()
    assert text.endswith("# EOF\n")
    return {
        sample.name
        + "".join(f" {v}" for k, v in sorted(sample.labels.items()) if k != "version"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def answer(address: str, *pieces: bytes) -> bytes:
    """What comes back for some bytes, until the connection ends."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        for piece in pieces:
            client.sendall(piece)
        return everything(client)


def everything(client: socket.socket) -> bytes:
    """What comes until the connection ends."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := client.recv(65536):
            found += data
    return found
