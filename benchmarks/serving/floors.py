"""Where the time of a request over HTTP goes: the same scoring behind less and less.

`python -m benchmarks.serving.floors [--seconds 1] [--rounds 7] [--items 100 500]`

The reference model of `python -m benchmarks.serving`. By turns, each figure the processor time of a request:
the plain network alone; from JSON to JSON in a loop ("alone"); the same with a pause of half a millisecond
before each, so that the process has slept as a server does ("after a pause"); the same behind a blocking
socket ("socket"), behind uvicorn as a plain function that scores where it reads ("function"), and as it is
served ("server"). And what does not score: a function that answers at once behind uvicorn ("nothing"), and
behind starlette, too ("starlette"). Ratios are medians of the rounds, to the network of the same round.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.processes import processor_seconds
from benchmarks.record import write
from benchmarks.serving.__main__ import MAX_ITEMS, Work, processor_ms, trained
from satrap.config.keys.serving import ServingKeys
from satrap.serve.http.app import Application
from satrap.serve.http.server import ScoringServer, listening
from satrap.serve.protocols import json as protocol
from satrap.serve.scoring.model import ServedModel
from satrap.serve.scoring.scorer import ScoredRequest, Scorer
from satrap.train import Predictor

KINDS = ("socket", "function", "server", "nothing", "starlette")
PAUSE = 0.0005
READ = 1 << 18
SAME = b"x" * 600
"""Answer of what does not score."""


def scored(model: ServedModel, body: bytes) -> bytes:
    asked = protocol.read(body, model, max_items=MAX_ITEMS)
    return protocol.write(ScoredRequest(model, model.step, model.score(model.encode([asked]))))


async def whole(receive: Any) -> bytes:
    """Return the body of a request of ASGI."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message["body"])
        more = message["more_body"]
    return b"".join(parts)


def plain(answer: Callable[[bytes], bytes]) -> Any:
    """Return a function as an ASGI application."""

    async def application(_: Any, receive: Any, send: Any) -> None:
        body = answer(await whole(receive))
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return application


def starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def answer(request: Request) -> Response:
        await request.body()
        return Response(SAME)

    return Starlette(routes=[Route("/v1/score", answer, methods=["POST"])])


def request(connection: socket.socket) -> bytes | None:
    """Return the body of the next request or answer; None: there is none."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(READ)):
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    [length] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    while len(body) < int(length.partition(b":")[2]):
        body += connection.recv(READ)
    return body


def over_a_socket(model: ServedModel, listener: socket.socket) -> None:
    listener.listen()
    connection, _ = listener.accept()
    while (body := request(connection)) is not None:
        answer = scored(model, body)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)


def serve(url: str, kind: str) -> None:
    """Be one of the servers; print the port."""
    torch.set_num_threads(1)
    listener = listening("127.0.0.1", 0, secret=None)
    model, port = ServedModel("reference", Predictor.load(url, threads=1)), listener.getsockname()[1]
    if kind == "socket":
        print(port, flush=True)
        over_a_socket(model, listener)
        return
    with Scorer(model) as scorer:
        application: Any = Application(scorer, ServingKeys())
        if kind != "server":
            made = {"function": plain(partial(scored, model)), "nothing": plain(lambda _: SAME)}
            application.asgi = made.get(kind) or starlette()
        ScoringServer(application, listener).run(lambda: print(port, flush=True))


class Process:
    """One of the servers, and a connection to it."""

    def __init__(self, url: str, kind: str) -> None:
        words = [sys.executable, "-m", "benchmarks.serving.floors", "--serve", url, kind]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._connection = socket.create_connection(("127.0.0.1", int(self._process.stdout.readline())))

    def ms(self, bodies: Sequence[bytes], seconds: float) -> float:
        """Return the processor time of a request."""
        head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        asked = [head % len(body) + body for body in bodies]
        count, start = 0, processor_seconds(self._process.pid)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._connection.sendall(asked[count % len(asked)])
            assert request(self._connection)
            count += 1
        return 1000 * (processor_seconds(self._process.pid) - start) / count

    def close(self) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.wait()


def after_a_pause(work: Work, seconds: float) -> float:
    spent, count, until = 0.0, 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        time.sleep(PAUSE)
        begun = time.process_time()
        work.requests(1)
        spent, count = spent + time.process_time() - begun, count + 1
    return 1000 * spent / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--items", type=int, nargs="*", default=[100, 500])
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(*asked.serve)
        return
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        url = trained(Path(folder) / "model")
        processes = {kind: Process(url, kind) for kind in KINDS}
        for items in asked.items:
            work, found = Work(url, items), dict[str, list[float]]()
            sides: dict[str, Callable[[], float]] = {
                "network": partial(processor_ms, work.network, asked.seconds),
                "alone": partial(processor_ms, partial(work.requests, 1), asked.seconds),
                "after a pause": partial(after_a_pause, work, asked.seconds),
                **{kind: partial(one.ms, work.bodies, asked.seconds) for kind, one in processes.items()},
            }
            for _ in range(asked.rounds):
                for name, measure in sides.items():
                    found.setdefault(name, []).append(measure())
            results[f"{items} items"] = {
                name: {
                    "ms": values,
                    "median": statistics.median(values),
                    "ratio": statistics.median(a / b for a, b in zip(values, found["network"], strict=True)),
                }
                for name, values in found.items()
            }
            shown = {
                k: (round(v["median"], 3), round(v["ratio"], 3)) for k, v in results[f"{items} items"].items()
            }
            print(items, json.dumps(shown), flush=True)
            work.model.close()
        for one in processes.values():
            one.close()
    print(write(Path(__file__).parent / "results", vars(asked), results))


if __name__ == "__main__":
    main()
