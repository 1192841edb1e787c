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


def ask(processes: Sequence[Process], steps: int) -> list[str]:
    """Let all processes of a side run some steps; return their answers."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{steps}\n")
        process.stdin.flush()
    return [line(process) for process in processes]


def turn(processes: Sequence[Process], steps: int) -> float:
    """Run some steps in the processes of a side; return the milliseconds per step of the slowest process."""
    return max(float(answer) for answer in ask(processes, steps))
