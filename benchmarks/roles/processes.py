"""The descendants of this process: the kind of each, its processor seconds and its memory."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KINDS = ("shard", "loader", "worker")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """A process: its number; shard, loader, worker, agent, driver or ray; processor seconds so far."""

    pid: int
    sort: str
    cpu: float

    @property
    def memory(self) -> float:
        """MiB of private memory, plus its part of shared memory."""
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def below(driver: int) -> list[Process]:
    """Return all descendants of this process; `driver` is one of them."""
    parents, cpu = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], cpu[pid] = int(words[1]), (int(words[11]) + int(words[12])) / _TICKS
    processes, reached = [], {os.getpid()}
    while reached:
        reached = {pid for pid, parent in parents.items() if parent in reached}
        for pid in reached:
            with contextlib.suppress(OSError):
                processes.append(Process(pid, "driver" if pid == driver else _sort(pid), cpu[pid]))
    return processes


def _sort(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    if "satrap.launch" in words:
        return "worker"
    if "satrap.cli" in words:
        return next(kind for kind in KINDS if kind in words)
    return "agent" if words[0].startswith("ray::Agent") else "ray"


def seconds(processes: list[Process], sort: str) -> float:
    """Return the processor seconds of the processes of a kind."""
    return sum(process.cpu for process in processes if process.sort == sort)


@contextmanager
def frozen(processes: list[Process]) -> Iterator[None]:
    """Pause processes for a while."""
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
