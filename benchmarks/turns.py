"""Processes that take steps in turn: each side computes while the others wait."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

Process = subprocess.Popen[str]


def line(process: Process) -> str:
    """Return the next line of a process; it must have one."""
    assert process.stdout is not None
    if not (text := process.stdout.readline().strip()):
        raise SystemExit("a process has ended early")
    return text


def turn(processes: Sequence[Process], steps: int) -> float:
    """Run some steps in the processes of a side; return the milliseconds per step of the slowest process."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{steps}\n")
        process.stdin.flush()
    return max(float(line(process)) for process in processes)
