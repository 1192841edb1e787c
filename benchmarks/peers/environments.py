"""Environments of the peers: folders of their own, over the packages of this interpreter.

An environment holds only what satrap's does not have. So both sides run with the same PyTorch, and no second
one is installed.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / ".peers"


class PeerMissingError(Exception):
    """A peer cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A peer's packages, installed on first use.

    Args:
        name: of its folder.
        packages: what pip installs with everything that they need.
        alone: what pip installs without it: packages that name another PyTorch, but run with this one.
        check: module that must be importable.
    """

    name: str
    packages: tuple[str, ...]
    alone: tuple[str, ...]
    check: str

    def python(self) -> str:
        """Return the environment's interpreter; install the packages if the check fails.

        Raises:
            PeerMissingError: the packages cannot be installed or imported.
        """
        folder = FOLDER / self.name
        python = folder / "bin" / "python"
        if not python.exists():
            venv.create(folder, with_pip=True)
            [packages] = folder.glob("lib/python*/site-packages")
            here = sysconfig.get_path("purelib")
            (packages / "satrap.pth").write_text(
                f"import site; site.addsitedir({here!r})\n", encoding="utf-8"
            )
        if self._fails([str(python), "-c", f"import {self.check}"]):
            pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            for command in ([*pip, *self.packages], [*pip, "--no-deps", *self.alone]):
                if error := self._fails(command):
                    raise PeerMissingError(f"pip install {' '.join(self.alone)}: {error}")
            if error := self._fails([str(python), "-c", f"import {self.check}"]):
                raise PeerMissingError(f"import {self.check}: {error}")
        return str(python)

    @staticmethod
    def _fails(command: list[str]) -> str:
        """Run a command; return the last line of its error, "" if it succeeds."""
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return "" if not done.returncode else (done.stderr.strip().splitlines() or ["it failed"])[-1]


TORCHREC = Environment(
    "torchrec",
    packages=("tensordict", "torchmetrics", "pyre-extensions", "iopath", "tqdm"),
    alone=("torchrec==1.9.2", "fbgemm-gpu-cpu==1.8.0"),
    check="torchrec.distributed",
)
"""TorchRec and FBGEMM, in the versions that import with PyTorch 2.11 to 2.13."""

PERSIA = (
    "PERSIA 0.1 has wheels up to Python 3.9, and no PyTorch for Python 3.9 is in the range torch>=2.11,<2.14"
)
"""Why PERSIA is not run."""


def python_of(side: str) -> str:
    """Return the interpreter that runs a side; see `Environment.python`."""
    peer = "torchrec" in side or "fbgemm" in side
    return TORCHREC.python() if peer else sys.executable
