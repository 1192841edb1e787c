"""Time of a process by stage: functions wrapped with two clocks each."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Stages:
    """Sums seconds, and CPU seconds of the calling thread, by stage; nested stages count in both.

    Attributes:
        seconds: stage -> [seconds, CPU seconds, calls].
    """

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def add(self, stage: str, seconds: float, cpu: float) -> None:
        total = self.seconds.setdefault(stage, [0.0, 0.0, 0])
        total[0] += seconds
        total[1] += cpu
        total[2] += 1

    def wrap(self, stage: str, place: str, name: str) -> None:
        """Replace attribute `name` of `module:Class` (or `module`) by a timed one."""
        module, _, owner = place.partition(":")
        where: Any = import_module(module)
        where = getattr(where, owner) if owner else where
        plain = getattr(where, name)

        @functools.wraps(plain)
        def timed(*arguments: Any, **named: Any) -> Any:
            start, cpu = time.perf_counter(), time.thread_time()
            try:
                return plain(*arguments, **named)
            finally:
                self.add(stage, time.perf_counter() - start, time.thread_time() - cpu)

        setattr(where, name, timed)

    def iterate(self, stage: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, timing the creation of each."""
        iterator = iter(items)
        while True:
            start, cpu = time.perf_counter(), time.thread_time()
            item = next(iterator, None)
            self.add(stage, time.perf_counter() - start, time.thread_time() - cpu)
            if item is None:
                return
            yield item

    def snapshot(self) -> dict[str, Any]:
        """Return everything so far: `stages`, `threads` (name -> CPU seconds) and `cpu` of this process."""
        return {
            "at": time.perf_counter(),
            "cpu": time.process_time(),
            "faults": _faults(),
            "machine": _machine(),
            "stages": {stage: list(total) for stage, total in self.seconds.items()},
            "threads": threads(),
        }


def _faults() -> int:
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return int(fields[7])


def _machine() -> dict[str, float]:
    """Return the CPU seconds of all cores since the machine started: busy, idle, stolen by its host."""
    line = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:]
    user, nice, system, idle, waiting, irq, soft, stolen, *_ = (
        int(f) / os.sysconf("SC_CLK_TCK") for f in line
    )
    return {"busy": user + nice + system + irq + soft, "idle": idle + waiting, "stolen": stolen}


def threads() -> dict[str, float]:
    """Return the CPU seconds of this process's threads; threads outside Python are summed."""
    names = {t.native_id: t.name for t in threading.enumerate()}
    by_thread: dict[str, float] = {}
    for folder in Path("/proc/self/task").iterdir():
        fields = (folder / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        name = names.get(int(folder.name), "others")
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        by_thread[name] = by_thread.get(name, 0.0) + seconds
    return by_thread


def difference(before: dict[str, Any], after: dict[str, Any], batches: int, samples: int) -> dict[str, Any]:
    """Return the difference of two snapshots, per batch in ms and per million samples in CPU seconds."""
    million = samples / 1e6
    stages = {
        stage: {
            "ms": round(1000 * (total[0] - old[0]) / batches, 3),
            "cpu_ms": round(1000 * (total[1] - old[1]) / batches, 3),
            "calls": round((total[2] - old[2]) / batches, 2),
        }
        for stage, total in after["stages"].items()
        for old in [before["stages"].get(stage, [0.0, 0.0, 0])]
    }
    return {
        "cpu_seconds_per_million_samples": round((after["cpu"] - before["cpu"]) / million, 3),
        "page_faults_per_batch": round((after["faults"] - before["faults"]) / batches),
        "thread_cpu_seconds_per_million_samples": {
            name: round((seconds - before["threads"].get(name, 0.0)) / million, 3)
            for name, seconds in after["threads"].items()
        },
        "stages_per_batch": stages,
    }
