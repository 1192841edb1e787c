"""Exchanges under test, and shard servers as threads or real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from satrap.exchange import Exchange, LocalExchange, LookupRequest
from satrap.exchange.lookup import Array
from satrap.exchange.servers import ClientOptions, ServersExchange, ShardServer, Wire, WorkerId
from satrap.optim import Adagrad
from satrap.schema import Table
from satrap.store import Shard, StoreConfig
from satrap.store.arrays import on_host
from satrap.store.gpu.device import interpreted

SEED = 11
EXACT = Wire("float32", "float32")
PATIENT = 200.0
"""Seconds: a shard that compiles its kernels on a busy machine is not taken for a dead one."""
TABLES = [
    Table("a", dim=4, optimizer=Adagrad(lr=0.1)),
    Table("b", dim=4, optimizer=Adagrad(lr=0.1)),
    Table("c", dim=17, optimizer=Adagrad(lr=0.1)),
]
KINDS = (
    "local",
    "servers-1",
    "servers-2",
    "servers-3",
    "processes-2",
    "embedding-1",
    "embedding-2",
    "collective-1",
    "collective-2",
    "collective-4",
    "mixed-4",
    "joined-1",
    "joined-2",
    "device-1",
    "device-2",
)
"""Exchanges that the contract holds for, with the number of their shards or ranks; "device": rows on one."""
Open = Callable[[], Exchange]
DEVICE_MEMORY = 8 << 20
"""For all rows of a process of these tests."""


def marks(kind: str) -> Sequence[pytest.MarkDecorator]:
    """Return the marks of the tests of an exchange."""
    if not kind.startswith("device"):
        return ()
    there = find_spec("triton") is not None and (torch.cuda.is_available() or interpreted())
    return pytest.mark.triton, pytest.mark.skipif(
        not there, reason="needs Triton, and a GPU or its interpreter"
    )


def local(**arguments: Any) -> LocalExchange:
    return LocalExchange(Shard(TABLES, seed=SEED, **arguments))


class FromDevice(LocalExchange):
    """Rows on a device, which are looked up as arrays."""

    def peek(self, requests: Sequence[LookupRequest]) -> list[Array]:
        return [on_host(rows) for rows in super().peek(requests)]

    def _rows_of(self, r: LookupRequest) -> tuple[Array, Any]:
        rows, places = super()._rows_of(r)
        return on_host(rows), places


def grouped(**arguments: Any) -> dict[str, Any]:
    """Return the arguments of an exchange; those of its parts, such as `memory`, are put into them."""
    for part, kind in (("store", StoreConfig), ("worker", WorkerId), ("options", ClientOptions)):
        own = {field.name for field in fields(kind)} & arguments.keys()
        if own:
            arguments[part] = kind(**{name: arguments.pop(name) for name in own})
    return arguments


def connect(addresses: Sequence[str], **arguments: Any) -> ServersExchange:
    """Return a client with the tables, seed and exact wire of the tests."""
    chosen = {"seed": SEED, "wire": EXACT, "deadline": PATIENT, "heartbeat": 0.2, **arguments}
    return ServersExchange(addresses, chosen.pop("tables", TABLES), **grouped(**chosen))


class Process:
    """One shard server in a process of its own.

    Args:
        listen: HOST:PORT.
        options: further options of `satrap shard`.

    Attributes:
        before: what it prints before the line that says it is ready.
    """

    def __init__(self, listen: str = "127.0.0.1:0", *options: str) -> None:
        command = [sys.executable, "-m", "satrap.cli", "shard", "--listen", listen, *options]
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.popen.stdout is not None
        self.before = ""
        while (line := self.popen.stdout.readline()) and " ready on " not in line:
            self.before += line
        self.line = line
        self.address = self.line.split()[4] if self.line else ""

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def end(self) -> int:
        """Kill it if it still runs; return its exit code."""
        if self.popen.poll() is None:
            self.popen.kill()
        code = self.popen.wait(10)
        for stream in (self.popen.stdout, self.popen.stderr):
            if stream:
                stream.close()
        return code


@contextmanager
def threads(shards: int, **arguments: Any) -> Iterator[list[ShardServer]]:
    """Run shard servers in threads of this process."""
    with ExitStack() as stack:
        yield [stack.enter_context(ShardServer("127.0.0.1:0", **arguments)) for _ in range(shards)]


def request(group: int, *ids: Sequence[int]) -> LookupRequest:
    """Return a request; one list of ids per table of the group."""
    flat = np.array([i for part in ids for i in part], dtype=np.uint64)
    return LookupRequest(group, flat, np.cumsum([0, *(len(p) for p in ids)]).astype(np.int64))


def random_requests(rng: np.random.Generator, *, ids: int = 400, most: int = 60) -> list[LookupRequest]:
    """Return requests for both groups with distinct random ids; some tables get none."""

    def some() -> list[int]:
        chosen = rng.choice(ids, rng.integers(0, most), replace=False)
        return [int(i) * 0x9E3779B97F4A7C15 % 2**64 for i in chosen]

    return [request(0, some(), some()), request(1, some())]


def gradients_for(rng: np.random.Generator, requests: Sequence[LookupRequest]) -> list[np.ndarray]:
    return [rng.standard_normal((len(r.ids), (4, 17)[r.group])).astype(np.float32) for r in requests]


def train(exchange: Exchange, *, steps: int, seed: int, ahead: int = 0) -> list[np.ndarray]:
    """Run a hybrid schedule over random requests; return everything that was looked up."""
    rng = np.random.default_rng(seed)
    pending, seen = [], []
    for step in range(steps + ahead):
        if step < steps:
            wanted = random_requests(rng)
            pending.append((exchange.lookup(wanted, create=True), gradients_for(rng, wanted)))
        if step >= ahead:
            lookup, gradients = pending[step - ahead]
            seen += lookup.result()
            exchange.apply(lookup, gradients, lr_scale=1.0 if (step - ahead) % 3 else 0.5)
    exchange.flush()
    return seen


def contents(exchange: Exchange) -> dict[str, tuple[np.ndarray, ...]]:
    """Return ids, weights and state of every table, in the order of the snapshot."""
    chunks = list(exchange.rows.cut(still=True))
    tables = sorted({name for name, _ in chunks})
    return {
        t: tuple(
            np.concatenate([getattr(c, field) for name, c in chunks if name == t])
            for field in ("ids", "weights", "state")
        )
        for t in tables
    }


def assert_equal_contents(a: Exchange, b: Exchange) -> None:
    mine, theirs = contents(a), contents(b)
    assert mine.keys() == theirs.keys()
    for table, columns in mine.items():
        for x, y in zip(columns, theirs[table], strict=True):
            np.testing.assert_array_equal(x, y)
