"""Logs of events for tests: what each holds, the servers behind them, and which events were read."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from satrap import Categorical, Numeric, Schema
from satrap.batch import Batch

SCHEMA = Schema(["y"], {"x": Numeric(), "u": Categorical(dim=2)})
"""The number x tells events apart."""


def events(start: int, count: int) -> dict[str, list[Any]]:
    """Return the columns of some events: x counts them, t is a second later for each."""
    x = list(range(start, start + count))
    return {"x": x, "y": [v % 2 for v in x], "u": [v % 50 for v in x], "t": [1.7e9 + v for v in x]}


def put(folder: Path, name: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Add a Parquet file of some events to a folder, in small row groups, at once."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    pq.write_table(pa.table(columns), temporary, row_group_size=7)
    temporary.rename(path)


def read_events(batches: Iterable[Batch | None]) -> list[int]:
    """Return the numbers x of the events in batches."""
    there = [batch for batch in batches if batch is not None]
    return [int(x) for batch in there for x in np.asarray(batch.numeric)[:, 0]]


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """A Redis server on this machine that keeps each entry before it acknowledges it.

    Attributes:
        url: of the server.
        client: connected to it.
    """

    def __init__(self, folder: Path) -> None:
        redis = pytest.importorskip("redis")
        if shutil.which("redis-server") is None:
            pytest.skip("redis-server is not installed; on Debian: apt-get install redis-server")
        self._folder, self._port = folder, free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.client = redis.Redis(port=self._port)
        self.start()

    def start(self) -> None:
        """Start it, with what it kept."""
        options = {"port": self._port, "bind": "127.0.0.1", "dir": self._folder, "save": ""}
        options |= {"appendonly": "yes", "appendfsync": "always"}
        line = [f"--{name}={value}" for name, value in options.items()]
        words = [word for one in line for word in one.split("=", 1)]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(["redis-server", *words], stdout=log)
        until = time.monotonic() + 30
        while True:
            try:
                self.client.ping()
                return
            except Exception:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.wait()

    def add(self, stream: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append events to a stream."""
        pipe = self.client.pipeline(transaction=False)
        for values in zip(*columns.values(), strict=True):
            pipe.xadd(stream, dict(zip(columns, values, strict=True)))
        pipe.execute()


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """Run a Redis server."""
    server = RedisServer(folder)
    try:
        yield server
    finally:
        server.client.close()
        server.kill()
