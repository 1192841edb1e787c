"""Test AUC of training with fewer bits, on the wire or in the network, and with 32 bits: several seeds.

`python -m benchmarks.precision RECIPE [--seeds 1 2 3 4 5] [--workers 2] [--wires "16 bits"] [--file FILE]`. A
step has the recipe's number of samples, divided among the workers. Each run is added to FILE, by default
`results/RECIPE.json`, when it ends; existing runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.modes.__main__ import one
from benchmarks.record import write
from satrap.config import load

WIRES = {
    "16 bits": ("float16", "bfloat16"),
    "8 bits": ("int8", "int8"),
    "dense bfloat16": ("float32", "float32", "bfloat16"),
    "dense float16": ("float32", "float32", "float16"),
    "dense int8": ("float32", "float32", "int8"),
    "dense powersgd": ("float32", "float32", "powersgd"),
    "network bfloat16": ("float32", "float32", "float32", "bfloat16"),
    "32 bits": ("float32", "float32"),
}
"""Values of the `KEYS`; float32 if a key is missing. The defaults come first."""

KEYS = ("cluster.wire.forward", "cluster.wire.backward", "cluster.wire.dense", "dense.precision")


def differences(runs: Sequence[dict[str, Any]], short: Sequence[str]) -> dict[str, Any]:
    """Return, per AUC, mean and deviation of each format, and the paired differences, each minus 32 bits."""
    tests = {(run["wire"], run["seed"]): run["test"] for run in runs}
    wires = [*short, "32 bits"]
    seeds = [seed for seed in sorted({run["seed"] for run in runs}) if all((w, seed) in tests for w in wires)]
    out: dict[str, Any] = {}
    for label in runs[0]["test"] if len(seeds) > 1 else ():
        if label.split("/")[-1] == "auc":
            values = {wire: [tests[wire, seed][label] for seed in seeds] for wire in wires}
            for wire in short:
                values[f"{wire} minus 32 bits"] = [
                    n - w for n, w in zip(values[wire], values["32 bits"], strict=True)
                ]
            out[label] = {
                name: {
                    "mean": round(statistics.mean(figures), 7),
                    "deviation": round(statistics.stdev(figures), 7),
                    "standard_error": round(statistics.stdev(figures) / math.sqrt(len(seeds)), 7),
                    "by_seed": [round(value, 7) for value in figures],
                }
                for name, figures in values.items()
            }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--wires", nargs="+", choices=[*WIRES][:-1], default=["16 bits"])
    parser.add_argument("--file", type=Path, help="file of the runs; default results/RECIPE.json")
    a = parser.parse_args()
    path = a.file or Path(__file__).parent / "results" / f"{a.recipe.stem}.json"
    size = load(a.recipe).sections.data.batch_size // a.workers
    settings = ["cluster.exchange=collective", f"cluster.workers={a.workers}", f"data.batch_size={size}"]
    wires = {name: WIRES[name] for name in (*a.wires, "32 bits")}
    parameters = {"recipe": a.recipe.name, "settings": settings, "wires": wires}
    runs: list[dict[str, Any]] = []
    if path.exists():
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["parameters"] != json.loads(json.dumps(parameters)):
            parser.error(f"{path} has runs with other parameters; name another --file")
        runs = content["results"]["runs"]
    for seed in a.seeds:
        for name, formats in wires.items():
            if any((run["wire"], run["seed"]) == (name, seed) for run in runs):
                continue
            numbers = [f"{key}={value}" for key, value in zip(KEYS, formats, strict=False)]
            run = one(a.recipe, "sync", seed, [*settings, *numbers])
            kept_keys = ("seed", "test", "validation_auc", "samples", "samples_per_second")
            runs.append({"wire": name, **{key: run[key] for key in kept_keys}})
            write(path.parent, parameters, {"runs": runs}, path)
            print(f"seed {seed} {name}: test AUC {run['test_auc']:.5f}", flush=True)
    summary = differences(runs, a.wires)
    write(path.parent, parameters, {"differences": summary, "runs": runs}, path)
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
