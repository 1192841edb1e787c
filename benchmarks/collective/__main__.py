"""Samples/s of collective workers and of TorchRec, in turns. See README.md here."""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.cluster.machines import Machines

from benchmarks.record import write

COMMON = ("rows", "batch_size", "warm_up", "steps", "passes", "delay", "rate")
SIDES = (
    "collective",
    "collective-lookahead",
    "collective-hybrid",
    "collective-float32",
    "collective-int8",
    "servers",
    "servers-hybrid",
    "torchrec",
    "torchrec-16bit",
)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def shards(count: int) -> Iterator[list[str]]:
    """Run shard servers; yield their addresses."""
    command = [sys.executable, "-m", "satrap.cli", "shard", "--listen", "127.0.0.1:0"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        yield [process.stdout.readline().split()[4] for process in started if process.stdout is not None]
    finally:
        for process in started:
            process.terminate()
            process.wait(20)


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Run the ranks of one side; return samples per second of each epoch, and a step's time by stage."""
    count = options["world"] if options["side"].startswith("servers") else 0
    with shards(count) as addresses, Machines(options["world"], options["rate"]) as machines:
        return run_ranks(options | {"shards": addresses}, machines)


def run_ranks(options: dict[str, Any], machines: Machines) -> dict[str, Any]:
    """Run the ranks of one side, each on its own machine; see `run`."""
    store = f"{machines.master}:{free_port()}"
    script = [sys.executable, "-m", "benchmarks.collective.ranks"]
    serve = "import sys, torch.distributed as d; s = d.TCPStore('127.0.0.1', int(sys.argv[1]), None, True, "
    serve += "wait_for_workers=False); print('ready', flush=True); sys.stdin.read()"
    meeting = None
    if "torchrec" not in options["side"]:  # there, rank 0 serves the store
        command = [*machines.command(0), sys.executable, "-c", serve, store.partition(":")[2]]
        meeting = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert meeting.stdout is not None
        meeting.stdout.readline()
    ranks = []
    for rank in range(options["world"]):
        settings = {"rank": rank, "store": store, "host": machines.addresses[rank]}
        environment = os.environ | {"RANK_OPTIONS": json.dumps(options | settings)}
        command = [*machines.command(rank), *script]
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [rank.communicate()[0] for rank in ranks]
    if meeting is not None:
        meeting.communicate("")
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank of {options['side']} failed")
    report: dict[str, Any] = json.loads(outputs[0].strip().splitlines()[-1])
    return report


def compare(options: argparse.Namespace, sides: list[str], **case: Any) -> dict[str, Any]:
    """Run all sides in turn, several times."""
    speeds: dict[str, list[int]] = {side: [] for side in sides}
    steps: dict[str, Any] = {}
    for repeat in range(options.repeats):
        for side in sides:
            common = {name: getattr(options, name) for name in COMMON}
            report = run({**common, **case, "side": side, "seed": repeat})
            speeds[side] += report["speeds"]
            steps[side] = told(report["of_a_step"], options.batch_size)
            print(case, side, speeds[side], steps[side], flush=True)
    median = {side: statistics.median(values) for side, values in speeds.items()}
    peer = median.get("torchrec")
    ratios = {} if peer is None else {s: round(m / peer, 3) for s, m in median.items()}
    print(case, "over torchrec:", ratios, flush=True)
    return {"samples_per_second": speeds, "median": median, "over_torchrec": ratios, "last_run": steps}


def told(step: dict[str, float], batch_size: int) -> dict[str, float]:
    """Return the milliseconds of each stage of a step, and the bytes sent per sample."""
    if not step:
        return {}
    stages = {f"{name}_ms": round(1e3 * value, 2) for name, value in step.items() if name != "sent"}
    return {**stages, "sent_bytes_per_sample": round(step["sent"] / batch_size, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--towers", nargs="+", default=["tiny", "dlrm"])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--batch-size", type=int, default=4096, help="of each worker")
    parser.add_argument("--warm-up", type=int, default=160, help="steps before the measured passes")
    parser.add_argument("--delay", type=float, default=0, help="milliseconds; sides of satrap only")
    parser.add_argument(
        "--rate", default="", help='of the network of each worker, such as "1gbit" (needs root); "": loopback'
    )
    parser.add_argument("--steps", type=int, default=40, help="of a pass")
    parser.add_argument("--passes", type=int, default=2, help="measured passes of each run")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--write", action="store_true", help="write the raw result as JSON next to this file")
    options = parser.parse_args()
    sides = [side for side in options.sides if "torchrec" not in side or find_spec("torchrec")]
    if options.delay and any("torchrec" in side or side.startswith("servers") for side in sides):
        parser.error("--delay is for the sides collective...")
    if options.rate and any(side.startswith("servers") for side in sides):
        parser.error("--rate is for the sides collective... and torchrec")
    load, results = os.getloadavg()[0], {}
    for tower in options.towers:
        for dim in options.dims:
            for world in options.workers:
                case = {"tower": tower, "dim": dim, "world": world}
                results[f"{tower}-dim{dim}-workers{world}"] = compare(options, sides, **case)
    if options.write:
        print(write(Path(__file__).parent / "results", vars(options) | {"load_before": load}, results))


if __name__ == "__main__":
    main()
