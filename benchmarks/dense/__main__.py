"""Memory of the network by mesh and during a save, and the cost of each backend. See README.md here."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.dense_memory import CASES, PROGRAM, SETTINGS, predicted, pretended_alone
from tests.dense.processes import Process, answers, started

from benchmarks.dense.device import measure as on_device
from benchmarks.dense.rank import Tower, adam, loss_of
from benchmarks.record import write
from benchmarks.turns import line, turn
from satrap.dense import Mesh
from satrap.plan.measure import network as measured_network
from satrap.tools.plan.dense import Inputs, NetworkSpec, Speed
from satrap.tools.plan.dense.meshes import needs

RANK = "benchmarks.dense.rank"

SAVED = {"width": 2048, "layers": 9}
"""The network of `saving`: 151 MB, and the same amount of momentum."""

WAYS: dict[str, dict[str, Any]] = {
    "plain PyTorch": {"plain": True},
    "one process": {},
    "one process, 4 micro-batches": {"parts": 4},
    "one process, checkpointed": {"checkpointed": True},
    "two copies": {"mesh": {"data": 2}},
    "weights in 2 parts": {"mesh": {"data": 2, "sharded": True}},
    "gradients in 2 parts": {"mesh": {"data": 2, "sharded": "gradients"}},
    "2 tensor parts": {"mesh": {"tensor": 2}},
    "2 stages, gpipe": {"mesh": {"pipeline": 2, "schedule": "gpipe"}},
    "2 stages, 1f1b": {"mesh": {"pipeline": 2}},
    "4 stages in 2 processes, looped_bfs": {"mesh": {"pipeline": 2, "schedule": "looped_bfs"}},
    "4 stages in 2 processes, interleaved_1f1b": {"mesh": {"pipeline": 2, "schedule": "interleaved_1f1b"}},
}


def memory() -> dict[str, Any]:
    """Return planned and measured peaks: of one process with a simulated mesh, and of real processes."""
    figures: dict[str, Any] = {}
    for number, (mesh, options) in enumerate(SETTINGS):
        planned, size = predicted(number), Mesh(**mesh).size
        alone = [pretended_alone(n) for n, case in enumerate(CASES) if case[:2] == (mesh, options)]
        real = answers(PROGRAM, size, json.dumps([(mesh, options, 0)])) if size == 2 else []
        ratios = [plan / was for plan, was in zip(planned, alone, strict=True)]
        figures[json.dumps(mesh | options)] = {
            "mesh": mesh,
            "options": options,
            "planned": planned,
            "pretended": alone,
            "real_by_process": real,
            "planned_by_pretended": ratios,
        }
        print(mesh | options, [round(ratio, 3) for ratio in ratios], flush=True)
    return figures


def overhead(options: argparse.Namespace) -> dict[str, Any]:
    """Return milliseconds of a step of each variant, in turns: while one computes, all others wait."""
    sizes = json.dumps({"size": options.size, "width": options.width, "layers": options.layers})
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    with ExitStack() as stack:
        running: dict[str, list[Process]] = {}
        for name, how in WAYS.items():
            size = Mesh(**how.get("mesh", {})).size
            running[name] = stack.enter_context(started(RANK, size, json.dumps(how), sizes))
            for process in running[name]:
                assert line(process) == "ready"
        for _ in range(options.rounds):
            for name, processes in running.items():
                times[name].append(turn(processes, options.steps))
    plain = times["plain PyTorch"]
    expected, speed = predicted_steps(options, statistics.median(plain))
    figures: dict[str, Any] = {"speed": asdict(speed)}
    for name, milliseconds in times.items():
        # Round by round, so that a temporary load slows both.
        ratio = statistics.median(one / base for one, base in zip(milliseconds, plain, strict=True))
        planned = expected.get(name)
        figures[name] = {
            "median_ms": statistics.median(milliseconds),
            "by_plain": ratio,
            "predicted_by_plain": planned,
            "ms": milliseconds,
        }
        suffix = "" if planned is None else f", predicted {planned:5.2f}"
        print(f"{name:42} {statistics.median(milliseconds):8.2f} ms {ratio:6.2f}{suffix}", flush=True)
    return figures


def predicted_steps(options: argparse.Namespace, plain_ms: float) -> tuple[dict[str, float], Speed]:
    """Return the prediction of `satrap plan` for each mesh, from the plain step, and the measured speeds."""
    inputs = Inputs(options.size, (), {}, {}, {}, (), options.width, 1, weights=False)
    network = NetworkSpec(partial(Tower, options.width, options.layers), inputs, adam, loss_of)
    [alone] = needs(network, Mesh())
    speed = Speed(alone.flop / plain_ms * 1000, measured_network(2)[0])
    figures = {}
    for name, how in WAYS.items():
        if "mesh" in how:
            steps = [need.seconds(speed) for need in needs(network, Mesh(**how["mesh"]))]
            figures[name] = 1000 * max(steps) / plain_ms
    return figures, speed


def saving() -> dict[str, Any]:
    """Return the memory that two processes need to save and read a network, with half of it in each."""
    with tempfile.TemporaryDirectory() as folder:
        sharded = answers("benchmarks.dense.saving", 2, json.dumps(SAVED), f"{folder}/model")
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in Path(folder, "model").rglob("*.safetensors")
        }
    print(*sharded, files, sep="\n", flush=True)
    return {"processes": sharded, "files": files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["memory", "overhead", "saving", "device"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=3, help="of a round")
    parser.add_argument("--size", type=int, default=512, help="samples of a batch")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--write", action="store_true", help="write the raw result as JSON next to this file")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes
    load = os.getloadavg()[0]
    measure = {
        "memory": memory,
        "overhead": partial(overhead, options),
        "saving": saving,
        "device": on_device,
    }
    results = measure[options.what]()
    if options.write:
        parameters = vars(options) | {"load_before": load, "saved": SAVED}
        print(write(Path(__file__).parent / "results", parameters, results))


if __name__ == "__main__":
    main()
