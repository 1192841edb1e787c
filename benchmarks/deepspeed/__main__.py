"""The same tower under ZeRO-1, 2 and 3, by satrap and by DeepSpeed: bytes per weight and time of a step."""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.dense.processes import started

from benchmarks.record import write
from benchmarks.turns import Process, line, turn

STAGES: dict[int, str | bool] = {1: "optimizer", 2: "gradients", 3: True}
FORMULA = {1: "4 + 4 + 8 / W", 2: "4 + (4 + 8) / W", 3: "(4 + 4 + 8) / W, and a layer"}
"""Bytes of weights, gradients and Adam's state per weight and process in float32, W processes."""


@contextmanager
def running(
    side: str, stage: int, sizes: dict[str, int], options: argparse.Namespace
) -> Iterator[list[Process]]:
    """Start the processes of a side; they are ready when their first steps are done."""
    text = json.dumps(sizes)
    if side == "satrap":
        how = json.dumps({"mesh": {"data": options.processes, "sharded": STAGES[stage]}})
        with started("benchmarks.dense.rank", options.processes, how, text) as processes:
            yield processes
        return
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    common = {"DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"WORLD_SIZE": options.processes}
    command = [options.python, str(Path(__file__).with_name("rank.py")), str(stage), text]
    with ExitStack() as stack:
        processes = []
        for rank in range(options.processes):
            variables = {
                name: str(value) for name, value in (common | {"RANK": rank, "LOCAL_RANK": rank}).items()
            }
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **variables},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def peak(process: Process) -> int:
    """Return the largest resident memory of a process so far, in bytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def memory(side: str, stage: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the peaks of a process with a low and a high tower, and the bytes per weight from them."""
    peaks, weights = [], []
    for layers in (3, 6):
        sizes = {"size": 64, "width": options.wide, "layers": layers}
        with running(side, stage, sizes, options) as processes:
            for process in processes:
                line(process)
            peaks.append(max(map(peak, processes)))
        weights.append(layers * options.wide * (options.wide + 1) + options.wide + 1)
    slope = (peaks[1] - peaks[0]) / (weights[1] - weights[0])
    return {"peak_bytes": peaks, "weights": weights, "bytes_per_weight": slope}


def times(stage: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return milliseconds of a step by side; in each round both have a turn while the other waits."""
    sizes = {"size": options.size, "width": options.width, "layers": options.layers}
    figures: dict[str, list[float]] = {"satrap": [], "deepspeed": []}
    with ExitStack() as stack:
        sides = {side: stack.enter_context(running(side, stage, sizes, options)) for side in figures}
        for processes in sides.values():
            for process in processes:
                line(process)
        for _ in range(options.rounds):
            for side, processes in sides.items():
                figures[side].append(turn(processes, options.steps))
    return figures


def main() -> None:
    """Print and record memory and time of each stage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deepspeed", description=__doc__)
    parser.add_argument("--python", required=True, help="Python of an environment with DeepSpeed and PyTorch")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3, help="of a round")
    parser.add_argument("--size", type=int, default=256, help="samples of a batch of a process")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--wide", type=int, default=4096, help="width of the towers whose memory is measured")
    parser.add_argument("--write", action="store_true", help="write the raw result as JSON next to this file")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    ask = "import deepspeed, torch; print(deepspeed.__version__, torch.__version__)"
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    version = subprocess.run(
        [options.python, "-c", ask], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()[-2:]
    results: dict[str, Any] = {"deepspeed": version, "load_before": os.getloadavg()[0]}
    for stage in STAGES:
        took = times(stage, options)
        ratio = statistics.median(a / b for a, b in zip(took["satrap"], took["deepspeed"], strict=True))
        bytes_of = {side: memory(side, stage, options) for side in took}
        results[f"ZeRO-{stage}"] = {"ms": took, "satrap_by_deepspeed": ratio, "memory": bytes_of}
        medians = {side: round(statistics.median(milliseconds), 1) for side, milliseconds in took.items()}
        each = {side: round(figures["bytes_per_weight"], 1) for side, figures in bytes_of.items()}
        print(
            f"ZeRO-{stage}: ms {medians}, ratio {ratio:.2f}; bytes per weight {each} ({FORMULA[stage]})",
            flush=True,
        )
    if options.write:
        parameters = {**vars(options), "python": "an environment with DeepSpeed"}
        print(write(Path(__file__).parent / "results", parameters, results))


if __name__ == "__main__":
    main()
