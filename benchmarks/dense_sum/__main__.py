"""Milliseconds in which workers average the network's gradients, by format. See README.md here."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from tests.cluster.machines import Machines

from benchmarks.processes import free_port
from benchmarks.record import write

FORMATS = ("float32", "bfloat16", "float16", "int8", "powersgd")


def run(dense: str, rate: str, options: argparse.Namespace) -> list[float]:
    """Run the workers, each a separate program started by torchrun; return rank 0's report."""
    environment, port = os.environ | {"OMP_NUM_THREADS": "1"}, str(free_port())
    with Machines(options.workers, rate) as machines:
        ranks = []
        for rank in range(options.workers):
            command = [*machines.command(rank), sys.executable, "-m", "torch.distributed.run"]
            command += ["--nproc-per-node", "1", "--nnodes", str(options.workers), "--node-rank", str(rank)]
            command += ["--master-addr", machines.master, "--master-port", port]
            command += ["-m", "benchmarks.dense_sum.rank", dense, str(options.sums)]
            ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed")
    milliseconds: list[float] = json.loads("".join(outputs).strip().splitlines()[-1])
    return milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rates", nargs="+", default=[""], help='such as "1gbit" (needs root); "": loopback')
    parser.add_argument("--sums", type=int, default=20, help="of a run")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each format, in turns")
    parser.add_argument("--write", action="store_true", help="write the raw result as JSON next to this file")
    options = parser.parse_args()
    load, results = os.getloadavg()[0], {}
    for rate in options.rates:
        by_format: dict[str, list[list[float]]] = {dense: [] for dense in FORMATS}
        for _ in range(options.repeats):
            for dense, runs in by_format.items():
                runs.append(run(dense, rate, options))
        median = {
            dense: statistics.median(ms for one in runs for ms in one) for dense, runs in by_format.items()
        }
        results[rate or "loopback"] = {"median": median, "raw": by_format}
        print(rate or "loopback", median, flush=True)
    if options.write:
        print(write(Path(__file__).parent / "results", vars(options) | {"load_before": load}, results))


if __name__ == "__main__":
    main()
