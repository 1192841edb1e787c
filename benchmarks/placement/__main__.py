"""A step of collective workers by placement, measured and predicted. See README.md here."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.machines import Machines

from benchmarks.processes import free_port
from benchmarks.record import write
from satrap.config import load
from satrap.exchange.collective.placement import PLACEMENTS
from satrap.launch.placement import Facts, plan
from satrap.plan import Plan

RECIPE = Path(__file__).resolve().parents[2] / "examples" / "recipes" / "dlrm_mlperf.yaml"
WIRES = {"16": ("float16", "bfloat16"), "32": ("float32", "float32")}
RATES = {"gbit": 1e9 / 8, "mbit": 1e6 / 8}


def bytes_per_second(rate: str) -> float | None:
    """Return the bytes/s of a rate in the words of `tc`, None without one."""
    return float(rate[:-4]) * RATES[rate[-4:]] if rate else None


def planned(workers: int, wire: str, rate: str, options: argparse.Namespace) -> Plan:
    """Return the plan for the data."""
    forward, backward = WIRES[wire]
    settings = [
        f"data.train={options.data}",
        f"data.batch_size={options.batch_size}",
        f"cluster.wire={{forward: {forward}, backward: {backward}}}",
        "training.mode=sync",
    ]
    facts = Facts(workers=workers, batches=4 * workers, bandwidth=bytes_per_second(rate))
    return plan(load(RECIPE, settings), facts)


def run(workers: int, wire: str, rate: str, placement: dict[str, Any], options: argparse.Namespace) -> Any:
    """Train with every worker as a separate program, started by torchrun; return rank 0's report."""
    settings = {
        name: getattr(options, name) for name in ("data", "batch_size", "steps", "tower", "lookahead")
    }
    settings |= {"recipe": str(RECIPE), "wire": WIRES[wire], "placement": placement}
    environment = os.environ | {"RANK_OPTIONS": json.dumps(settings), "OMP_NUM_THREADS": "1"}
    port = str(free_port())
    with Machines(workers, rate) as machines:
        ranks = []
        for rank in range(workers):
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--nnodes"]
            torchrun += [str(workers), "--node-rank", str(rank), "--master-addr", machines.master]
            command = [*machines.command(rank), *torchrun, "--master-port", port]
            command += ["-m", "benchmarks.placement.rank"]
            ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed")
    return json.loads("".join(outputs).strip().splitlines()[-1])


def case(workers: int, wire: str, rate: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all placements in turns; return medians and predictions."""
    chosen = planned(workers, wire, rate, options)
    auto = {"tables": dict(chosen.placements), "owners": dict(chosen.cost.owners)}
    placements = {name: {"default": name} for name in PLACEMENTS} | {"auto": auto}
    costs = {**chosen.uniform, "auto": chosen.cost}
    reports: dict[str, list[Any]] = {name: [] for name in placements}
    for _ in range(options.repeats):
        for name, placement in placements.items():
            reports[name].append(run(workers, wire, rate, placement, options))
            print(workers, wire, rate or "loopback", name, json.dumps(reports[name][-1]), flush=True)
    median = {name: statistics.median(one["ms"] for one in all_) for name, all_ in reports.items()}
    best = min(value for name, value in median.items() if name != "auto")
    return {
        "raw": reports,
        "ms": median,
        "auto_over_best": median["auto"] / best,
        "auto_table_wise": [table for table, own in chosen.placements.items() if own == "table_wise"],
        "auto_replicated": [table for table, own in chosen.placements.items() if own == "replicated"],
        "predicted_ms": {name: 1000 * cost.seconds for name, cost in costs.items()},
        "predicted_kib_of_all": {name: float(cost.sent.sum()) / 1024 for name, cost in costs.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="Parquet files of examples/dlrm/generate.py, a glob")
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--wires", nargs="+", choices=list(WIRES), default=list(WIRES))
    parser.add_argument("--rates", nargs="+", default=[""], help='such as "1gbit" (needs root); "": loopback')
    parser.add_argument("--tower", choices=["tiny", "dlrm"], default="tiny")
    parser.add_argument("--batch-size", type=int, default=512, help="of each worker")
    parser.add_argument("--steps", type=int, default=20, help="of a pass")
    parser.add_argument("--lookahead", type=int, default=0, help="steps; owners then do not pool")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the raw result as JSON next to this file")
    options = parser.parse_args()
    load_before, results, path = os.getloadavg()[0], {}, None
    for workers in options.workers:
        for rate in options.rates:
            for wire in options.wires:
                name = f"workers{workers}-{rate or 'loopback'}-{wire}bit"
                results[name] = case(workers, wire, rate, options)
                print(name, json.dumps({k: v for k, v in results[name].items() if k != "raw"}), flush=True)
                if options.write:
                    parameters = vars(options) | {"load_before": load_before}
                    path = write(Path(__file__).parent / "results", parameters, results, path)


if __name__ == "__main__":
    main()
