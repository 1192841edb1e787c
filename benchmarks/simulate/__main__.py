"""Throughput predicted by `satrap plan --simulate`, compared with real runs. See README.md here."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.persia import workload
from benchmarks.record import write
from satrap.tools.plan.calibration import Case, cases, measure
from satrap.tools.plan.simulate.costs import Calibration, MachineCosts, MeasuredRun
from satrap.tools.plan.simulate.measured import Measured

HERE = Path(__file__).parent
GOAL = 0.15
COMPARED = (
    Case("servers"),
    Case("servers", shards=2),
    Case("servers", delay=1e-3),
    Case("servers", batch=1.5, dim=1.5),
    Case("servers", "hybrid", 1),
    Case("servers", "hybrid", 4, shards=2),
    Case("servers", "hybrid", 4, delay=1e-3),
    Case("servers", "hybrid", 4, batch=1.5),
    Case("servers", workers=2),
    Case("servers", workers=2, shards=2, dim=1.5),
    Case("servers", "hybrid", 1, workers=2, batch=1.5),
    Case("servers", "hybrid", 4, workers=2, shards=2),
    Case("collective", workers=2),
    Case("collective", workers=2, batch=1.5, dim=1.5),
)
"""None is a run of the calibration."""
FEATURES, NUMBERS = len(workload.CARDINALITIES), workload.NUMBERS


def recipe(folder: Path, data: Path, batch_size: int) -> Path:
    """Write the recipe; return its path."""
    numbers = [f"  I{i}: {{numeric: true}}" for i in range(NUMBERS)]
    ids = [f"  C{i}: {{dim: 16}}" for i in range(FEATURES)]
    lines = [
        f"data: {{train: {data.absolute()}, batch_size: {batch_size}}}",
        "labels: [label]",
        "features:",
        *numbers,
        *ids,
        "model: {name: dnn, hidden: [64, 32]}",
        "embedding: {optimizer: {name: adagrad, lr: 0.02}}",
    ]
    path = folder / "simulate.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@contextmanager
def delayed(seconds: float) -> Iterator[Callable[[str], str]]:
    """Yield a function that puts a process in front of an address, which delays every byte, each way."""
    with ExitStack() as stack:

        def way(address: str) -> str:
            if not seconds:
                return address
            command = [sys.executable, "-m", "benchmarks.delay.proxy", address, str(1000 * seconds)]
            proxy = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(proxy.kill)
            assert proxy.stdout is not None
            return proxy.stdout.readline().strip()

        yield way


def named(case: Case, batch_size: int) -> str:
    ahead = f" {case.ahead}" if case.ahead else ""
    shards = f", {case.shards} shard{'s' * (case.shards > 1)}" if case.exchange == "servers" else ""
    delay = f", {1000 * case.delay:g} ms away" if case.delay else ""
    sizes = f"batch {round(case.batch * batch_size)}, dim {round(16 * case.dim)}"
    workers = f"{case.workers} worker{'s' * (case.workers > 1)}"
    return f"{case.exchange}, {case.mode}{ahead}, {workers}{shards}, {sizes}{delay}"


def told(wanted: list[Case], found: list[list[Measured]]) -> list[MeasuredRun]:
    return [
        MeasuredRun(case.exchange, case.mode, case.ahead, Measured.median(each), case.copies, case.delay)
        for case, each in zip(wanted, found, strict=True)
    ]


def results(
    calibration: Calibration, compared: list[MeasuredRun], options: argparse.Namespace
) -> dict[str, Any]:
    """Predict and compare; return all with the raw numbers."""
    costs = MachineCosts(calibration)
    rows = []
    for case, run in zip(COMPARED, compared, strict=True):
        predicted, actual = costs.predict(run).samples_per_second, run.measured.samples_per_second
        row = {
            "predicted": round(predicted),
            "measured": round(actual),
            "ratio": round(predicted / actual, 3),
        }
        rows.append({"run": named(case, options.batch_size), **row})
        print(rows[-1], flush=True)
    within = sum(abs(row["ratio"] - 1) <= GOAL for row in rows)
    print(f"{within} of {len(rows)} within {GOAL:.0%}", flush=True)
    return {
        "within_15_percent": within,
        "compared": rows,
        "costs": costs.to_dict(),
        "calibration": asdict(calibration),
        "runs": [asdict(run) for run in compared],
    }


def table(found: dict[str, Any]) -> str:
    """Return the comparison as a Markdown table."""
    lines = ["| run | predicted, samples/s | measured | predicted / measured |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {r['run']} | {r['predicted']:,} | {r['measured']:,} | {r['ratio']:.2f} |"
        for r in found["compared"]
    ]
    return "\n".join([*lines, "", f"{found['within_15_percent']} of {len(found['compared'])} within 15 %."])


def keep(found: dict[str, Any], options: argparse.Namespace, load: float) -> None:
    """Write the raw result, and the table into the README."""
    parameters = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    raw = write(HERE / "results", parameters | {"load_before": round(load, 2)}, found)
    readme = HERE / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition("<!-- measured -->\n")
    _, _, after = rest.partition("<!-- end -->\n")
    when = f"{datetime.now(UTC):%Y-%m-%d}, load {load:.1f} before"
    section = f"{when}, [json](results/{raw.name}):\n\n{table(found)}\n"
    readme.write_text(f"{before}<!-- measured -->\n{section}<!-- end -->\n{after}", encoding="utf-8")
    print(raw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=768)
    parser.add_argument("--data", type=Path, default=Path("runs/persia.arrow"), help="created if missing")
    parser.add_argument(
        "--write", action="store_true", help="keep the raw result, and the table in README.md"
    )
    options = parser.parse_args()
    workload.write_file(options.data)
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    all_cases = [*cases(cores), *COMPARED]
    measurements: list[list[Measured]] = [[] for _ in all_cases]
    with tempfile.TemporaryDirectory() as folder:
        path = recipe(Path(folder), options.data, options.batch_size)
        for number in range(options.rounds):
            for case, each in zip(all_cases, measurements, strict=True):
                with delayed(case.delay) as way:
                    each.append(measure(path, [], case, options.steps, way=way))
                speed, busy = each[-1].samples_per_second, each[-1].busy
                line = f"{named(case, options.batch_size)}: {speed:,.0f} samples/s, {busy:.2f} cores busy"
                print(f"round {number + 1}, {line}", flush=True)
    runs = told(all_cases, measurements)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    calibration = Calibration(runs[: -len(COMPARED)], cores, "benchmarks.simulate", today)
    compared = results(calibration, runs[-len(COMPARED) :], options)
    if options.write:
        keep(compared, options, load)


if __name__ == "__main__":
    main()
