"""Samples/s of collective workers and of TorchRec, in turns. See README.md here."""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

from benchmarks.peers.sides import running
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


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Run one side alone; return samples per second of each pass, and a step of all passes by stage."""
    count = options["world"] * options["batch_size"]
    with running(options) as side:
        turns = [side.turn(options["steps"]) for _ in range(options["passes"])]
    step = {}
    if turns[0].report:
        names = [name for name in turns[0].report if name != "sent"]
        per = options["steps"] * len(turns)
        step = {name: sum(turn.report[name] for turn in turns) / per for name in names}
        if len(turns) > 1:  # it counts from the start
            sent = turns[-1].report["sent"] - turns[0].report["sent"]
            step["sent"] = sent / (per - options["steps"])
    return {"speeds": [round(1e3 * count / turn.wall_ms) for turn in turns], "of_a_step": step}


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
    sent = {"sent_bytes_per_sample": round(step["sent"] / batch_size, 1)} if "sent" in step else {}
    return stages | sent


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
    sides = options.sides
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
