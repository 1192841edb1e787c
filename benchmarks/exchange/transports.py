"""The transport alone, compared with its predecessor: `python -m benchmarks.exchange.transports [--write]`.

A client requests rows from a server process (480 KB of ids there, 7.7 MB back), pushes them (the reverse),
and makes empty calls; over `satrap.rpc` and over ZeroMQ (ROUTER and DEALER without copies, as satrap used
it), each without and with a key. All run in turns, round after round; the results are medians over the
rounds. Needs pyzmq, which satrap does not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from satrap.rpc import Key, create_key, read_key
from satrap.rpc.transport.dialer import Dialer
from satrap.rpc.transport.framing import Message
from satrap.rpc.transport.listener import Bounds, Listener
from satrap.rpc.transport.poller import WRITE, Poller
from satrap.runtime.malloc import keep_freed_memory

IDS, ROWS = 480_000, 7_680_000
LIMIT = 64 << 20
Call = Callable[[Sequence[Any], int], None]


def answer_of(parts: Sequence[Any]) -> list[Any]:
    """A server whose requests state the size of their answer."""
    size = int.from_bytes(bytes(parts[0])[:8], "little")
    return [b"head".ljust(76), _ROWS[:size] if size else b""]


_ROWS = np.zeros(ROWS, np.uint8)


def serve_rpc(pipe: Connection, key: Path | None) -> None:
    def answer(number: Any, message: Message) -> None:
        listener.trust(number)
        listener.send(number, answer_of(message))

    keep_freed_memory()
    secret = read_key(key) if key else None
    listener = Listener("127.0.0.1:0", key=secret, bounds=Bounds(message_bytes=LIMIT), on_message=answer)
    pipe.send(listener.address)
    while True:
        listener.poll(1.0)


def serve_zmq(pipe: Connection, secret: bytes | None) -> None:
    keep_freed_memory()
    socket = zmq.Context().socket(zmq.ROUTER)
    if secret:
        socket.curve_server, socket.curve_secretkey = True, secret
    pipe.send(f"127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}")
    while True:
        identity, *parts = socket.recv_multipart(copy=False)
        socket.send_multipart([identity, *answer_of([p.buffer for p in parts])], copy=False)


@contextmanager
def server(serve: Callable[..., None], secret: Any) -> Iterator[tuple[str, int]]:
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, secret), daemon=True)
    process.start()
    assert process.pid
    try:
        yield mine.recv(), process.pid
    finally:
        process.kill()
        process.join()


def client_rpc(address: str, key: Key | None) -> Call:
    poller: Poller[None] = Poller()
    dialer = Dialer(address, key=key, max_bytes=LIMIT, ring=poller.ring)
    dialer.dial()
    while (connection := dialer.made()) is None:
        poller.wait(1.0)

    def call(parts: Sequence[Any], size: int) -> None:
        connection.send(parts)
        connection.flush()
        while True:
            poller.watch(connection, connection.wants(), None)
            for _, events in poller.wait(10.0):
                if events & WRITE:
                    connection.flush()
                for message in connection.receive():
                    assert len(message[1]) == size
                    return

    return call


def client_zmq(address: str, secret: bytes | None) -> Call:
    socket = zmq.Context().socket(zmq.DEALER)
    if secret:
        socket.curve_serverkey = zmq.curve_public(secret)
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    socket.connect(f"tcp://{address}")

    def call(parts: Sequence[Any], size: int) -> None:
        socket.send_multipart(parts, copy=False)
        answer = socket.recv_multipart(copy=False)
        assert len(answer[1]) == size

    return call


def cpu_seconds(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((t / "schedstat").read_text(encoding="utf-8").split()[0]) for t in threads) / 1e9


def measure(call: Call, pid: int, calls: int) -> dict[str, float]:
    ids, figures = np.zeros(IDS, np.uint8), {}
    rows = np.zeros(ROWS, np.uint8)

    def head(size: int) -> bytes:
        return size.to_bytes(8, "little").ljust(76)

    work = {
        "empty": ([head(0)], 0, 20 * calls, 0),
        "lookup": ([head(ROWS), ids], ROWS, calls, IDS + ROWS),
        "push": ([head(76), rows], 76, calls, ROWS),
    }
    for name, (parts, size, count, moved) in work.items():
        call(parts, size)
        times, before = [], (cpu_seconds(os.getpid()), cpu_seconds(pid))
        for _ in range(count):
            started = time.perf_counter()
            call(parts, size)
            times.append(time.perf_counter() - started)
        after = cpu_seconds(os.getpid()), cpu_seconds(pid)
        used = [1e3 * (b - a) / count for a, b in zip(before, after, strict=True)]
        figures[f"{name}_us"] = 1e6 * statistics.median(times)
        if moved:
            figures[f"{name}_GB_s"] = moved / statistics.median(times) / 1e9
            figures |= {
                f"{name}_cpu_ms_per_MB_{w}": 1e6 * u / moved
                for w, u in zip(("client", "server"), used, strict=True)
            }
        else:
            figures[f"{name}_cpu_us_both"] = 1e3 * sum(used)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--write", action="store_true", help="write the raw result as JSON next to this file")
    arguments = parser.parse_args()
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "key"
        create_key(path)
        secret = zmq.curve_keypair()[1]
        variants: dict[str, tuple[Any, Any, Any, Any]] = {
            "rpc": (serve_rpc, None, client_rpc, None),
            "zeromq": (serve_zmq, None, client_zmq, None),
            "rpc_key": (serve_rpc, path, client_rpc, read_key(path)),
            "zeromq_key": (serve_zmq, secret, client_zmq, secret),
        }
        rounds: dict[str, list[dict[str, float]]] = defaultdict(list)
        load = os.getloadavg()[0]
        for _ in range(arguments.rounds):
            for name, (serve, theirs, client, mine) in variants.items():
                with server(serve, theirs) as (address, pid):
                    rounds[name].append(measure(client(address, mine), pid, arguments.calls))
    results = {
        name: {k: float(f"{statistics.median(r[k] for r in measured):.4g}") for k in measured[0]}
        for name, measured in rounds.items()
    }
    for name, result in results.items():
        print(name, result)
    if arguments.write:
        from benchmarks.record import write  # not in the servers: it imports PyTorch

        about = vars(arguments) | {
            "load_before": round(load, 2),
            "pyzmq": zmq.__version__,
            "libzmq": zmq.zmq_version(),
        }
        print(write(Path(__file__).parent / "results", about, results))


if __name__ == "__main__":
    main()
