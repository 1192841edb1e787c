"""Summarize and draw all results of a recipe: `python -m benchmarks.modes.plot goodbooks.yaml` writes an SVG.

The curve of a mode is the AUC of the training samples (windows of 50,000 of rank 0, scored before training on
them) over the samples of all workers: the mean over seeds, and their range.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.modes.__main__ import differences

HERE = Path(__file__).parent
COLOURS = {"sync": "#222222", "hybrid": "#1f6fb4", "async": "#d9541e"}
POINTS = 60


def runs_of(recipe: str) -> list[dict[str, Any]]:
    """Return the newest run of each mode and seed, with the number of workers."""
    newest: dict[tuple[str, int], dict[str, Any]] = {}
    for file in sorted((HERE / "results").glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["parameters"]["recipe"] == recipe:
            for run in content["results"]["runs"]:
                newest[run["mode"], run["seed"]] = run | {"workers": content["parameters"]["workers"]}
    return list(newest.values())


def curve(run: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Return (samples of all workers, AUC) at the end of each window."""
    factor = run["workers"] if run["mode"] == "async" else 1  # there, each worker counts its own
    xs, ys = [], []
    for samples, auc in run["training_auc"]:
        if not ys or auc != ys[-1]:
            xs.append(float(samples * factor))
            ys.append(auc)
    return xs, ys


def draw(runs: list[dict[str, Any]], recipe: str, target: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": recipe, "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.2))
    for mode, colour in COLOURS.items():
        curves = [curve(run) for run in runs if run["mode"] == mode]
        if not curves:
            continue
        grid = np.linspace(max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves), POINTS)
        values = np.array([np.interp(grid, x, y) for x, y in curves])
        label = f"{mode}, {len(curves)} seeds"
        axes.plot(grid / 1e6, values.mean(0), color=colour, label=label, linewidth=1.5)
        axes.fill_between(grid / 1e6, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("million samples of all workers")
    axes.set_ylabel("AUC of training samples")
    axes.set_title(recipe.removesuffix(".yaml"))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(target, format="svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    recipe = parser.parse_args().recipe
    runs = runs_of(recipe)
    for mode, figures in differences(runs).items():
        aucs = [run["test_auc"] for run in runs if run["mode"] == mode]
        minus = list((figures["minus_sync"] or {0: 0.0}).values())
        spread = statistics.stdev(aucs) if len(aucs) > 1 else 0.0
        print(
            f"{mode:<7} seeds {len(aucs)}  test AUC {statistics.mean(aucs):.5f}  deviation {spread:.5f}  "
            f"minus sync {statistics.mean(minus):+.6f}  single {min(minus):+.5f} to {max(minus):+.5f}"
        )
    target = HERE / recipe.replace(".yaml", ".svg")
    draw(runs, recipe, target)
    print(target.name)


if __name__ == "__main__":
    main()
