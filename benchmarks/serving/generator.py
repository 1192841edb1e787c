"""Rate and lateness of the requests of the generator of `satrap bench serve`.

`python -m benchmarks.serving.generator [--seconds 5] [--rates 500 1000 2000 4000]`

Requests of 100 items, to a server in another process that answers at once, without reading them. "sent" is
the time from a request's due time until it was sent, in milliseconds of wall-clock time, "latency" the time
until its answer arrived; "processor_ms" is the processor time of the generator's process per request.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.record import write
from benchmarks.serving.__main__ import request
from satrap.serve.loadtest.connection import TargetServer
from satrap.serve.loadtest.generator import Generator, arrivals
from satrap.serve.loadtest.offline import scores_in

BODY = b'{"model":"m","step":1,"predictions":{"click":[' + b",".join([b"0.12345678"] * 100) + b"]}}"
ANSWER = (
    b"HTTP/1.1 200 OK\r\nSatrap-Step: 1\r\nServer-Timing: parse;dur=0.100, wait;dur=0.100\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
) + BODY


class AtOnce(asyncio.Protocol):
    """Answers once the stated number of bytes of a request has arrived."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, end, body = self.data.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0]):
            self.data = b""
            self.transport.write(ANSWER)


def serving(told: Any) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(AtOnce, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(serve())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each rate")
    parser.add_argument("--rates", type=float, nargs="*", default=[500.0, 1000.0, 2000.0, 4000.0])
    arguments = parser.parse_args()
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serving, args=(theirs,), daemon=True)
    process.start()
    target = TargetServer("127.0.0.1", mine.recv())
    requests = [target.post("/v1/score", request(100, seed)) for seed in range(64)]
    results = {}
    for rate in arguments.rates:
        due, start = arrivals(rate, arguments.seconds, 0), time.process_time()
        outcomes = uvloop.run(Generator(target, requests, due, read=scores_in).run())
        took = 1000 * (time.process_time() - start) / len(outcomes)
        assert all(one.answered for one in outcomes)
        figures = {"processor_ms": took, "waited": sum(one.waited for one in outcomes)}
        for name, seconds in (
            ("sent", [one.sent - one.due for one in outcomes]),
            ("latency", [one.latency for one in outcomes]),
        ):
            for share in (0.5, 0.99):
                figures[f"{name} p{100 * share:g}"] = 1000 * float(np.quantile(seconds, share))
        results[f"{rate:g}/s"] = figures
        print(f"{rate:g}/s", {name: round(value, 3) for name, value in figures.items()}, flush=True)
    process.terminate()
    print(write(Path(__file__).parent / "results", vars(arguments), results))


if __name__ == "__main__":
    main()
