"""Training with optimizer and weights on a disk, with room for them in memory and without. See README.md."""

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
    """Give the file through which a process enters a group with so many bytes of memory."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text("utf-8").splitlines()]
    own = [path for _, controllers, path in lines if "memory" in controllers.split(",")]
    group = Path(f"/sys/fs/cgroup/memory{own[0]}/satrap-offload-{os.getpid()}")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(count))
        yield str(group / "cgroup.procs")
    finally:
        group.rmdir()


def run(how: str, folder: str, group: str, sizes: list[int]) -> dict[str, Any]:
    """Return the seconds of a step, of all and of the processor, or that it was killed."""
    command = [sys.executable, "-m", "benchmarks.offload.steps", how, folder, group, *map(str, sizes)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if folder == "cuda" and not ended.returncode:
        found: dict[str, Any] = loads(ended.stdout)
        print(how, group, found, flush=True)
        return found
    if ended.returncode == -9:
        return {"killed": True}
    if ended.returncode:
        raise SystemExit(ended.stderr)
    *steps, total = loads(ended.stdout)
    seconds, cpu = ([round(one[kind], 3) for one in steps] for kind in (0, 1))
    measured = {"step_s": statistics.median(seconds[1:]), "step_cpu_s": statistics.median(cpu[1:])}
    return {"killed": False, **measured, "steps_s": seconds, "steps_cpu_s": cpu, "sum": total}


def main() -> None:
    """Measure each way without and with a limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="on the disk to be measured, or cuda: host memory, for that device")
    parser.add_argument(
        "--limit", type=int, default=160_000_000, help="bytes of memory, or of the device's; 0: no limit"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    for name, default in (("layers", 24), ("width", 1024), ("batch", 512), ("steps", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    sizes = [given.layers, given.width, given.batch, given.steps]
    weights = 4 * given.layers * given.width * (given.width + 1)
    found: dict[str, Any] = {"bytes": {"weights": weights, "gradients": weights, "optimizer": 2 * weights}}
    on_device = given.folder == "cuda"
    room = "0" if on_device else os.devnull
    found["with_room"] = {how: run(how, given.folder, room, sizes) for how in given.ways}
    if given.limit:
        with nullcontext(str(given.limit)) if on_device else limited(given.limit) as group:
            found["limited"] = {how: run(how, given.folder, group, sizes) for how in given.ways}
    parameters = {name: value for name, value in vars(given).items() if name != "folder"}
    print(write(RESULTS, parameters, found).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
