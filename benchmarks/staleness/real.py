"""Test AUC of the bundled books by staleness, batch size and number of workers."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.first_try.__main__ import satrap
from benchmarks.record import write

RECIPE = Path("examples/recipes/goodbooks.yaml").resolve()
STALENESS, BATCH_SIZES, WORKERS = (0, 1, 4, 16, 64), (512, 4096), (1, 2)
TWO = ("cluster.exchange=servers", "cluster.workers=2", "cluster.shards=2", "data.global_batch=true")


def scores(staleness: int, batch_size: int, workers: int, seed: int, warmup: int | None) -> dict[str, float]:
    """Train the recipe; return its test metrics."""
    settings = [f"data.batch_size={batch_size}", f"training.seed={seed}"]
    if staleness:
        settings += ["training.mode=hybrid", f"training.staleness={staleness}"]
        settings += [] if warmup is None else [f"training.staleness_warmup={warmup}"]
    else:
        settings += ["training.mode=sync"]
    options = [part for s in (*settings, *(TWO if workers == 2 else ())) for part in ("--set", s)]
    with tempfile.TemporaryDirectory() as folder:
        satrap(Path(folder), "train", str(RECIPE), "--output", "run", *options)
        figures = json.loads((Path(folder) / "run" / "metrics.json").read_text())["test"]
    return {name: round(figures[name], 5) for name in ("auc", "logloss")}


def main() -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.staleness.real", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--staleness", type=int, nargs="+", default=STALENESS)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, choices=WORKERS)
    a = parser.parse_args()
    runs: list[dict[str, Any]] = []
    path: Path | None = None
    for seed in a.seeds:
        for batch_size in BATCH_SIZES:
            for workers in a.workers:
                for staleness in a.staleness:
                    # Full at once, as in the bound; the default warm-up is shown where it matters most.
                    for warmup in (0, None) if staleness >= 16 else (0,):
                        about = {"seed": seed, "batch_size": batch_size, "workers": workers}
                        about |= {"staleness": staleness, "warmup": warmup != 0}
                        runs.append(about | scores(staleness, batch_size, workers, seed, warmup))
                        print(json.dumps(runs[-1]), flush=True)
                        path = write(Path(__file__).parent / "results", vars(a), {"real": runs}, path)
    print(f"raw figures: {path}")


if __name__ == "__main__":
    main()
