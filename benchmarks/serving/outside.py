"""The server measured by external tools, `wrk` and `autocannon`, and the same model in Ray Serve.

`python -m benchmarks.serving.outside [--seconds 10] [--connections 1 8]`

The reference work of `python -m benchmarks.serving`, as a trained run: `satrap serve` and one replica of
`satrap deploy ray-serve` take turns. `wrk` and `autocannon` load each on the given numbers of connections,
one request of 100 items after another on each. "cpu_ms" is the processor time per request, of the server, or
of all processes of Ray. Needs `pip install 'satrap[ray]'`, and wrk (Debian) and autocannon (npm) in PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.processes import processor_seconds
from benchmarks.record import write
from benchmarks.serving.__main__ import IDS, NUMBERS, request
from satrap import launch
from satrap.config import load

RECIPE = """\
data: {{train: rows.parquet, batch_size: 1000}}
labels: [click]
features:
{features}
model: {{name: dcnv2, hidden: [256, 128], cross_layers: 2}}
training: {{mode: sync, epochs: 1}}
"""

RAY = """\
import sys
import time
import ray
from ray import serve
from satrap.serve.replica import application
ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR", _node_ip_address="127.0.0.1")
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
serve.run(application({"run": sys.argv[1]}), route_prefix="/")
print("ready", flush=True)
time.sleep(10**6)
"""

WRK = """\
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local file = io.open("{body}", "rb")
wrk.body = file:read("*a")
"""


def trained(folder: Path) -> Path:
    """Train the reference model a little."""
    random, count = np.random.default_rng(0), 20_000
    columns: dict[str, Any] = {f"c{n}": random.integers(0, 50_000, count) for n in range(IDS)}
    columns |= {f"n{n}": random.normal(size=count) for n in range(NUMBERS)}
    pd.DataFrame(columns | {"click": random.integers(0, 2, count)}).to_parquet(folder / "rows.parquet")
    lines = [f"  c{n}: {{dim: 16}}" for n in range(IDS)] + [
        f"  n{n}: {{numeric: true}}" for n in range(NUMBERS)
    ]
    (folder / "reference.yaml").write_text(RECIPE.format(features="\n".join(lines)))
    launch.train(load(folder / "reference.yaml"), str(folder / "reference"))
    return folder / "reference"


def descendants(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    pids = [pid]
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        for word in child.read_text().split():
            pids += descendants(int(word))
    return pids


@contextmanager
def running(words: list[object], until: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("w") as errors:
        process = subprocess.Popen(
            [str(word) for word in words], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if until in line:
                break
        else:
            raise RuntimeError(log.read_text())
        yield process
    finally:
        process.terminate()
        process.wait(60)


def by_wrk(url: str, connections: int, seconds: float, folder: Path) -> dict[str, float]:
    (folder / "post.lua").write_text(WRK.format(body=folder / "body.json"))
    words = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", folder / "post.lua", url]
    text = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in text, text

    def milliseconds(share: str) -> float:
        match = re.search(rf"{share}%\s+([\d.]+)(us|ms|s)", text)
        assert match, text
        return float(match[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[match[2]]

    count = re.search(r"(\d+) requests in", text)
    assert count, text
    return {"requests": int(count[1]), "p50_ms": milliseconds("50"), "p99_ms": milliseconds("99")}


def by_autocannon(url: str, connections: int, seconds: float, folder: Path) -> dict[str, float]:
    words = [
        "autocannon",
        "-j",
        "-c",
        connections,
        "-d",
        f"{seconds:g}",
        "-m",
        "POST",
        "-i",
        folder / "body.json",
    ]
    words += ["-H", "Content-Type=application/json", url]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["non2xx"] == report["errors"] == 0, report
    latency = report["latency"]
    return {"requests": report["requests"]["total"], "p50_ms": latency["p50"], "p99_ms": latency["p99"]}


TOOLS = {"wrk": by_wrk, "autocannon": by_autocannon}


def asked(
    url: str, process: int, tool: str, connections: int, seconds: float, folder: Path
) -> dict[str, float]:
    pids = descendants(process)
    before, begun = sum(map(processor_seconds, pids)), time.perf_counter()
    figures = TOOLS[tool](url, connections, seconds, folder)
    took = time.perf_counter() - begun
    return {
        **figures,
        "requests_per_second": figures["requests"] / took,
        "cpu_ms": 1000 * (sum(map(processor_seconds, pids)) - before) / figures["requests"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    for tool in TOOLS:
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not in PATH")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = trained(folder)
        (folder / "body.json").write_bytes(request(100, 0))
        satrap = Path(sys.executable).with_name("satrap")
        ports = {"satrap": 18731, "ray": 18732}
        serve = [satrap, "serve", run, "--listen", f"127.0.0.1:{ports['satrap']}"]
        ray = [sys.executable, "-c", RAY, run, ports["ray"]]
        rounds: dict[str, list[dict[str, float]]] = {}
        with (
            running(serve, "try it", folder / "satrap.log") as ours,
            running(ray, "ready", folder / "ray.log") as theirs,
        ):
            answers = []
            for who in ports:
                url = f"http://127.0.0.1:{ports[who]}/v1/score"
                with urllib.request.urlopen(url, (folder / "body.json").read_bytes()) as answer:
                    answers.append(json.load(answer)["predictions"])
            assert answers[0].keys() == answers[1].keys()
            assert all(np.allclose(answers[0][k], answers[1][k], rtol=0, atol=1e-6) for k in answers[0])
            for _ in range(options.rounds):
                for connections in options.connections:
                    for tool in TOOLS:
                        for who, process in (("satrap", ours.pid), ("ray", theirs.pid)):
                            url = f"http://127.0.0.1:{ports[who]}/v1/score"
                            measured = asked(url, process, tool, connections, options.seconds, folder)
                            print(who, tool, connections, json.dumps(measured), flush=True)
                            rounds.setdefault(f"{who}, {tool}, {connections} connections", []).append(
                                measured
                            )
        medians = {
            key: {name: statistics.median(figures[name] for figures in measured) for name in measured[0]}
            for key, measured in rounds.items()
        }
    print(write(Path(__file__).parent / "results", vars(options), {"medians": medians, "rounds": rounds}))
    print(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
