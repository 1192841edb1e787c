"""Compares satrap with the peers that can be had here, line by line and by turns. See README.md here."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers import page
from benchmarks.peers.environments import FOLDER, PeerMissingError
from benchmarks.peers.environments import PERSIA as WITHOUT_PERSIA
from benchmarks.peers.lines import LINES, PERSIA, Line
from benchmarks.peers.sides import ROOT, Turn, running
from benchmarks.persia.__main__ import PUBLISHED
from benchmarks.persia.workload import BATCH, write_file
from benchmarks.record import write

RESULTS = Path(__file__).parent / "results"
DATA = FOLDER / "persia.arrow"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    names = [*LINES, *PERSIA]
    parser.add_argument(
        "--lines",
        nargs="+",
        metavar="LINE",
        default=names,
        help=f"names or their beginnings: {' '.join(names)}",
    )
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of all tables together")
    parser.add_argument("--batch-size", type=int, default=4096, help="of each worker")
    parser.add_argument("--warm-up", type=int, default=100, help="steps before the first turn")
    parser.add_argument("--steps", type=int, default=40, help="steps of a turn")
    parser.add_argument("--turns", type=int, default=9, help="turns of each side")
    parser.add_argument("--quick", action="store_true", help="200,000 rows, 3 turns of 10 steps: a trial")
    parser.add_argument("--output", type=Path, help="JSON file; default: a new one in results/")
    parser.add_argument(
        "--page", action="store_true", help="only write docs/speed.md again from the kept files"
    )
    options = parser.parse_args()
    if options.quick:
        options.rows, options.warm_up, options.steps, options.turns = 200_000, 20, 10, 3
    options.lines = [name for name in names if any(name.startswith(start) for start in options.lines)]
    return options


def summary(satrap: list[Turn], peer: list[Turn]) -> dict[str, Any]:
    """Return the figures of a line; ratios are the peer's time to satrap's, turn by turn."""
    pairs = list(zip(satrap, peer, strict=True))
    result: dict[str, Any] = {}
    for clock in ("cpu_ms", "wall_ms"):
        sides = {"satrap": [getattr(t, clock) for t in satrap], "peer": [getattr(t, clock) for t in peer]}
        ratios = sorted(getattr(theirs, clock) / getattr(ours, clock) for ours, theirs in pairs)
        result[clock] = {
            **{side: round(statistics.median(times), 2) for side, times in sides.items()},
            "ratio": round(statistics.median(ratios), 2),
            "ratios": [round(ratio, 3) for ratio in ratios],
            "turns": {side: [round(time, 3) for time in times] for side, times in sides.items()},
        }
    return result


def compare(line: Line, options: argparse.Namespace) -> dict[str, Any]:
    """Let the two sides of a line take turns; the side that is first alternates."""
    common = {name: getattr(options, name) for name in ("rows", "batch_size", "warm_up")}
    turns: dict[str, list[Turn]] = {"satrap": [], "peer": []}
    with ExitStack() as stack:
        peer = stack.enter_context(running(common | line.options(line.peer)))
        satrap = stack.enter_context(running(common | line.options(line.satrap)))
        order = [("satrap", satrap), ("peer", peer)]
        for _ in range(options.turns):
            for name, side in order:
                turns[name].append(side.turn(options.steps))
            order.reverse()
    return {"line": line.text, **summary(turns["satrap"], turns["peer"])}


def compare_with_persia(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train over a shard server once a turn, in new processes; compare with recorded figures."""
    tower, dim = PERSIA[name]
    command = [sys.executable, "-m", "benchmarks.persia", "--model", tower, "--dims", str(dim), "--repeats"]
    command += ["1", "--inside", "--data", str(DATA)]
    write_file(DATA)
    speed, cpu = PUBLISHED[f"{tower} {dim}"]
    turns = []
    for _ in range(min(options.turns, 3)):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        run = json.loads(done.stdout.splitlines()[-1])
        per_step = run["cpu_seconds_per_million_samples"] * BATCH / 1e3
        turns.append(Turn(per_step, run["ms_per_batch"], {}))
    recorded = Turn(cpu * BATCH / 1e3, 1e3 * BATCH / speed, {})
    text = f"PERSIA 0.1 as recorded on an idle AMD EPYC, one shard server, {tower} tower, dim {dim}"
    return {"line": text, "reason": WITHOUT_PERSIA, **summary(turns, [recorded] * len(turns))}


def main() -> None:
    """Measure line by line; the file is written after each."""
    options = arguments()
    if options.page:
        page.write()
        return
    path, results = options.output, dict[str, Any]()
    if path is None:
        path = RESULTS / f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}.json"
    parameters = {k: v for k, v in vars(options).items() if k not in ("output", "page")}
    parameters["load_before"] = round(os.getloadavg()[0], 1)
    for name in options.lines:
        try:
            measured = compare(LINES[name], options) if name in LINES else compare_with_persia(name, options)
        except PeerMissingError as error:
            measured = {"line": LINES[name].text, "reason": str(error)}
        results[name] = measured | {"load": round(os.getloadavg()[0], 1)}  # of all programs, these among them
        write(path.parent, parameters, results, path)
        print(page.row(results[name]), flush=True)
    print(f"\nraw figures: {path}\n\n{page.table(path)}")


if __name__ == "__main__":
    main()
