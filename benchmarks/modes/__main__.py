"""Test AUC of sync, hybrid and async training over shards and workers: the same recipe, several seeds.

`python -m benchmarks.modes [--recipe FILE] [--modes sync hybrid async] [--seeds 1 2] [--shards 2]
[--workers 2] [--staleness 4] [--batch-size 512] [--epochs 2] [--write]`. The batch size is each worker's.
Wire formats are the defaults: float16 rows and bfloat16 gradients; float32 in async.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import satrap
from benchmarks.record import write
from satrap import launch
from satrap.config import load

GOODBOOKS = Path(satrap.__file__).parent / "quickstart" / "goodbooks.yaml"


def one(recipe: Path, mode: str, seed: int, settings: Sequence[str]) -> dict[str, Any]:
    """Train once; return AUC, speed, traffic and the curve of the training AUC."""
    loaded = load(recipe, [f"training.mode={mode}", f"training.seed={seed}", *settings])
    with tempfile.TemporaryDirectory() as folder:
        outcome = launch.train(loaded, f"{folder}/run")
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [line for line in map(json.loads, lines) if line["event"] == "step"]
    result = outcome.result
    return {
        "mode": mode,
        "seed": seed,
        "test_auc": outcome.test["auc"],
        "test": dict(outcome.test),
        "validation_auc": [metrics["auc"] for metrics in result.history],
        "samples": result.samples,
        "samples_per_second": round(result.samples_per_second),
        "staleness": dict(result.staleness),
        "traffic": dict(result.traffic),
        "training_auc": [[s["samples"], s["auc"]] for s in steps if s["auc"] is not None],
        "training_loss": [[s["samples"], s["loss"]] for s in steps if s["loss"] is not None],
    }


def differences(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return, per mode, mean test AUC and its difference from sync, by seed and on average."""
    of_mode: dict[str, dict[int, float]] = {}
    for run in runs:
        of_mode.setdefault(run["mode"], {})[run["seed"]] = run["test_auc"]
    sync = of_mode.get("sync", {})
    out: dict[str, Any] = {}
    for mode, aucs in of_mode.items():
        minus = {seed: round(auc - sync[seed], 6) for seed, auc in aucs.items() if seed in sync}
        out[mode] = {
            "test_auc_mean": round(statistics.mean(aucs.values()), 6),
            "minus_sync": minus,
            "minus_sync_mean": round(statistics.mean(minus.values()), 6) if minus else None,
        }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, default=GOODBOOKS)
    parser.add_argument("--modes", nargs="+", default=["sync", "hybrid", "async"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    for name, default in (
        ("shards", 2),
        ("workers", 2),
        ("staleness", 4),
        ("batch-size", 512),
        ("epochs", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--write", action="store_true")
    a = parser.parse_args()
    settings = [
        "cluster.exchange=servers",
        f"cluster.shards={a.shards}",
        f"cluster.workers={a.workers}",
        f"training.staleness={a.staleness}",
        f"training.epochs={a.epochs}",
        f"data.batch_size={a.batch_size}",
    ]
    runs = []
    for seed in a.seeds:
        for mode in a.modes:
            runs.append(one(a.recipe, mode, seed, settings))
            auc, speed = runs[-1]["test_auc"], runs[-1]["samples_per_second"]
            print(f"seed {seed} {mode:<7} test AUC {auc:.4f}  {speed:,} samples/s", flush=True)
    figures = differences(runs)
    print(json.dumps(figures, indent=2))
    if a.write:
        parameters = {k: str(v.name) if isinstance(v, Path) else v for k, v in vars(a).items()}
        print(write(Path(__file__).parent / "results", parameters, {"modes": figures, "runs": runs}))


if __name__ == "__main__":
    main()
