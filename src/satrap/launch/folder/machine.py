"""Facts about this process and its machine, for the run folder and for `satrap doctor`."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from satrap.runtime.machine_limits import machine_bytes, usable_cores
from satrap.train import Observer, Progress

CPU_INFO = Path("/proc/cpuinfo")


def machine_facts() -> dict[str, Any]:
    """Return versions of satrap and its libraries, system, processor, cores and bytes of memory.

    Names of machine and user are not included.
    """
    return {
        **{name: version(name) for name in ("satrap", "torch", "numpy", "numba")},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "cores": round(usable_cores(), 2),
        "memory": machine_bytes(),
    }


def processor(info: Path = CPU_INFO) -> str:
    """Return the name of the processor, if the system provides it."""
    try:
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


class MachineLog(Observer):
    """Appends a line to a file when training starts: step, time (UTC), and the facts above.

    A resumed run has several lines. If a line cannot be written, `notice` gets a warning.
    """

    def __init__(self, path: Path, *, notice: Callable[[str], None] = lambda _: None) -> None:
        self.path, self._notice = path, notice

    def started(self, progress: Progress) -> None:
        """Write the line."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"step": progress.step, "time": now, **machine_facts()}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            self._notice(f"warning: {self.path.name} cannot be written: {error}")
