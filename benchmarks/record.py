"""Write one benchmark run as JSON, with the data needed to judge and repeat it."""

from __future__ import annotations

import json
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("satrap", "torch", "numpy", "numba", "pyarrow")


def machine() -> dict[str, Any]:
    """Describe the machine: processor, cores, memory, versions."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    models = [line.split(":")[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    meminfo = Path("/proc/meminfo").read_text(encoding="utf-8") if Path("/proc/meminfo").exists() else ""
    total = [int(line.split()[1]) for line in meminfo.splitlines() if line.startswith("MemTotal")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": len(models) or None,
        "memory_gib": round(total[0] / 2**20, 1) if total else None,
        "torch_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "packages": {name: version(name) for name in PACKAGES},
    }


def write(
    folder: Path, parameters: dict[str, Any], results: dict[str, Any], path: Path | None = None
) -> Path:
    """Write `folder/<date>T<time>.json`, or `path` over again as results come in; return its path."""
    now = datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    path = path or folder / f"{now:%Y-%m-%dT%H%M%S}.json"
    program = Path(sys.argv[0]).resolve()
    module = program.parent.name if program.stem == "__main__" else f"{program.parent.name}.{program.stem}"
    # A folder's location is useless elsewhere; its name identifies it.
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    content = {
        "date": now.isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", f"benchmarks.{module}", *words]),
        "machine": machine(),
        "parameters": parameters,
        "results": results,
    }
    unfinished = path.with_suffix(".tmp")  # an existing file stays whole if this is interrupted
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return unfinished.replace(path)
