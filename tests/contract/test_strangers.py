"""Connections from anyone, against a real shard: it lives on, keeps its size, and serves its clients."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from satrap.rpc import create_key, read_key
from satrap.rpc.wire.frames import Header, MessageKind, digest, encode
from satrap.runtime.numba_cache import COMPILING
from tests.contract.parties import Process, connect, request
from tests.rpc import plain
from tests.support.covering import covering

_GREETING = 107
"""Bytes of a ZeroMQ greeting; sent for themselves, as a handshake is."""
Flood = Callable[[str, float], None]


def zmtp() -> bytes:
    """A greeting of ZeroMQ, then empty messages and PINGs: what aborted shards that spoke it, in seconds."""
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER" + b"\x08Identity" + bytes(4)
    ping = b"\x04PING\0\0" + b"x" * 16
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
    command = b"\x04" + bytes([len(ping)]) + ping
    return greeting + b"\x04" + bytes([len(ready)]) + ready + (b"\0\0" * 200 + command * 20) * 1200


REFUSED = plain.encode([encode(Header(MessageKind.PING), digest([]))])
STREAMS = {
    "zmtp": zmtp(),
    "pings": REFUSED * 5000,
    "empty messages": plain.encode([b""]) * 50_000,
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "garbage": random.Random(1).randbytes(100_000),
    "half a message": plain.encode([bytes(4 << 20)])[:-1],
    "nothing": b"",
}


def sends(stream: bytes) -> Flood:
    """Connect, send, read nothing, close; again and again."""

    def flood(address: str, until: float) -> None:
        rng = random.Random()
        while time.monotonic() < until:
            with suppress(OSError), plain.connect(address) as sock:
                sock.settimeout(0.5)
                sock.sendall(stream[:_GREETING])
                sock.sendall(stream[_GREETING : rng.choice([len(stream), rng.randrange(len(stream) + 1)])])

    return flood


def stays(count: int) -> Flood:
    """Keep many connections open, sending a byte now and then."""

    def flood(address: str, until: float) -> None:
        with ExitStack() as stack:
            socks = []
            while time.monotonic() < until:
                with suppress(OSError):
                    if len(socks) < count:
                        socks.append(stack.enter_context(plain.connect(address)))
                    place = random.randrange(len(socks))
                    socks[place].send(REFUSED[place % len(REFUSED) :][:1])

    return flood


@contextmanager
def under(address: str, floods: list[Flood], seconds: float) -> Iterator[float]:
    """Have strangers at work meanwhile; the time when they end."""
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=flood, args=(address, until)) for flood in floods]
    for thread in threads:
        thread.start()
    try:
        yield until
    finally:
        for thread in threads:
            thread.join()


def resident(process: Process) -> int:
    """MiB in memory."""
    return int(Path(f"/proc/{process.popen.pid}/statm").read_text().split()[1]) * 4096 >> 20


@pytest.mark.parametrize(
    ("kind", "protected"),
    covering([*STREAMS, "all"], [False, True]),
    ids=lambda value: {False: "open", True: "key"}.get(value, value),
)
@pytest.mark.chaos
def test_no_stranger_ends_a_shard_or_keeps_it_from_its_clients(
    tmp_path: Path, kind: str, *, protected: bool
) -> None:
    create_key(tmp_path / "key")
    key = read_key(tmp_path / "key") if protected else None
    options = ["--key", str(tmp_path / "key")] if protected else []
    floods = [sends(STREAMS[kind])] * 20 if kind != "all" else [*map(sends, STREAMS.values()), stays(400)]
    with Process("127.0.0.1:0", *options) as process:
        wanted = [request(0, [1, 2, 3], [4])]
        patient = connect([process.address], key=key)  # while the shard compiles its kernels
        [rows] = patient.lookup(wanted, create=True).result()
        patient.close()
        exchange = connect([process.address], key=key, deadline=30.0)
        before, served = resident(process), 0
        with under(process.address, floods, 10.0 if kind in ("zmtp", "all") else 4.0) as until:
            while not served or time.monotonic() < until:  # each is answered before the deadline
                [again] = exchange.lookup(wanted, create=True).result()
                np.testing.assert_array_equal(again, rows)
                served += 1
            assert process.popen.poll() is None
        assert resident(process) < 2 * before
        exchange.close()
        late = connect([process.address], key=key)
        late.close()
        process.popen.terminate()
        assert process.popen.wait(60) == 0
        assert process.popen.stderr is not None
        assert process.popen.stderr.read().removeprefix(f"{COMPILING}\n") == ""
