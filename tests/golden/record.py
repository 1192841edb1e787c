"""What a golden file says: a line for each number and array, and the kind of machine it was written on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt
from llvmlite.binding import get_host_cpu_name
from numba.core.config import CPU_NAME
from torch.backends.cpu import get_cpu_capability

Array = npt.NDArray[np.generic]

TOLERANCE = 5e-3
"""How far numbers of two kinds of machines may be apart, relative to them: sums are taken in other orders."""


def kind_of_machine() -> str:
    """Return what decides the last bits of PyTorch's and NumPy's arithmetic."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "numba"))
    return f"{CPU_NAME or get_host_cpu_name()} {get_cpu_capability()}, {packages}"


@dataclass
class Record:
    """Lines by name.

    A line of `exact` is the same on every machine. Others have a digest, which is compared between machines
    of one kind, and a number, which is compared within its rounding between others.
    """

    machine: str = field(default_factory=kind_of_machine)
    lines: dict[str, str] = field(default_factory=dict)

    def numbers(self, name: str, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.lines[f"{name}: {key}"] = f"~ {float(value).hex()} {value:.8g}"

    def array(self, name: str, values: Array) -> None:
        """Record an array's digest and root of mean squares."""
        size = float(np.sqrt(np.mean(np.square(values.astype(np.float64))))) if values.size else 0.0
        self.lines[name] = f"~ {_digest(values)} {size:.8g}"

    def exact(self, name: str, values: Array | bytes) -> None:
        """Record what is the same on all machines."""
        self.lines[name] = _digest(np.frombuffer(values, np.uint8) if isinstance(values, bytes) else values)

    def write(self, path: Path) -> None:
        lines = [f"machine = {self.machine}", *(f"{name} = {line}" for name, line in self.lines.items())]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Record:
        pairs = (line.split(" = ", 1) for line in path.read_text(encoding="utf-8").splitlines())
        lines = dict(pairs)
        return cls(lines.pop("machine"), lines)

    def differences(self, golden: Record) -> list[str]:
        """Return what differs from a golden record, in its order, a line each."""
        alike = self.machine == golden.machine
        names = [*golden.lines, *(name for name in self.lines if name not in golden.lines)]
        pairs = [(name, self.lines.get(name, "nothing"), golden.lines.get(name, "nothing")) for name in names]
        return [
            f"{name}: {mine}, not {theirs}" for name, mine, theirs in pairs if not _same(mine, theirs, alike)
        ]


def _same(mine: str, theirs: str, alike: bool) -> bool:
    if alike or not mine.startswith("~ ") or not theirs.startswith("~ "):
        return mine == theirs
    one, other = (float(line.rsplit(" ", 1)[1]) for line in (mine, theirs))
    return abs(one - other) <= TOLERANCE * max(abs(one), abs(other)) + 1e-7


def _digest(values: Array) -> str:
    head = f"{values.dtype.str} {values.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(values).tobytes()).hexdigest()[:16]
