"""Processes that take steps by turns: each side computes while the others wait."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

Process = subprocess.Popen[str]


def line(process: Process) -> str:
    """Return the next line of a process; it must have one."""
    assert process.stdout is not None
    if not (found := process.stdout.readline().strip()):
        raise SystemExit("a process has ended early")
    return found


def turn(processes: Sequence[Process], steps: int) -> float:
    """Have the processes of a side take some steps; return the milliseconds of one, where it took longest."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{steps}\n")
        process.stdin.flush()
    return max(float(line(process)) for process in processes)
