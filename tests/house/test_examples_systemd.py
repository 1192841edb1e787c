"""The units of systemd in examples/ are ones that systemd accepts, and their commands have the options."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from satrap.cli.commands import satrap
from tests.cli.command import SATRAP

UNITS = sorted((Path(__file__).parents[2] / "examples" / "systemd").glob("*.service"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_them(tmp_path: Path, unit: Path) -> None:
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace("/opt/satrap/bin", str(SATRAP.parent)))
    ran = subprocess.run(
        ["systemd-analyze", "verify", str(here)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_satrap_has_their_options(unit: Path) -> None:
    (line,) = (line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    words = re.split(r"satrap(?:\.cli)? ", line)[-1].split()
    known = {option for param in satrap.commands[words[0]].params for option in param.opts}
    assert {word for word in words if word.startswith("--")} <= known
