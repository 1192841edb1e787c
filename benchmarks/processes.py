"""Resources of a process, as counted by the system."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far, in user and system mode."""
    words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int, line: str = "VmRSS") -> float:
    """Return the memory of a process, MiB; line "VmHWM": its peak since `forget_peak`."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return int(next(text for text in lines if text.startswith(line)).split()[1]) / 1024


def forget_peak(pid: int) -> None:
    """Let the peak of a process's memory begin at its present size, see proc_pid_clear_refs(5)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf-8")


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
