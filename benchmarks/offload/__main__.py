"""Training with optimizer and weights on a disk, with and without room for them in memory. See README.md."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from json import loads
from pathlib import Path
from typing import Any

from benchmarks.record import write

RESULTS = Path(__file__).parent / "results"
WAYS = ("nothing", "optimizer", "weights")


@contextmanager
def limited(count: int) -> Iterator[str]:
    """Yield the file through which a process enters a control group with limited memory."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text("utf-8").splitlines()]
    groups = [path for _, controllers, path in lines if "memory" in controllers.split(",")]
    group = Path(f"/sys/fs/cgroup/memory{groups[0]}/satrap-offload-{os.getpid()}")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(count))
        yield str(group / "cgroup.procs")
    finally:
        group.rmdir()


def run(how: str, folder: str, group: str, sizes: list[int]) -> dict[str, Any]:
    """Return the elapsed and processor seconds of a step, or that it was killed."""
    command = [sys.executable, "-m", "benchmarks.offload.steps", how, folder, group, *map(str, sizes)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if folder == "cuda" and not ended.returncode:
        figures: dict[str, Any] = loads(ended.stdout)
        print(how, group, figures, flush=True)
        return figures
    if ended.returncode == -9:
        return {"killed": True}
    if ended.returncode:
        raise SystemExit(ended.stderr)
    *steps, total = loads(ended.stdout)
    seconds, cpu = ([round(one[kind], 3) for one in steps] for kind in (0, 1))
    measured = {"step_s": statistics.median(seconds[1:]), "step_cpu_s": statistics.median(cpu[1:])}
    return {"killed": False, **measured, "steps_s": seconds, "steps_cpu_s": cpu, "sum": total}


def main() -> None:
    """Measure each variant without and with a limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="on the disk to be measured, or cuda: host memory, for that device")
    parser.add_argument(
        "--limit", type=int, default=160_000_000, help="bytes of memory, or of the device's; 0: no limit"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    for name, default in (("layers", 24), ("width", 1024), ("batch", 512), ("steps", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    sizes = [options.layers, options.width, options.batch, options.steps]
    weights = 4 * options.layers * options.width * (options.width + 1)
    figures: dict[str, Any] = {"bytes": {"weights": weights, "gradients": weights, "optimizer": 2 * weights}}
    on_device = options.folder == "cuda"
    room = "0" if on_device else os.devnull
    figures["with_room"] = {how: run(how, options.folder, room, sizes) for how in options.ways}
    if options.limit:
        with nullcontext(str(options.limit)) if on_device else limited(options.limit) as group:
            figures["limited"] = {how: run(how, options.folder, group, sizes) for how in options.ways}
    parameters = {name: value for name, value in vars(options).items() if name != "folder"}
    print(write(RESULTS, parameters, figures).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
