"""A new user's first hour with a wheel: every step of `first_hour.md`, and what it prints."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.docs.page import follow, steps

ROOT = Path(__file__).resolve().parents[2]
PAGE = Path(__file__).with_name("first_hour.md")

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a new environment: satrap from a wheel, its dependencies from this environment.

    PyTorch alone would take minutes to install, and other tests check the oldest and newest dependencies.
    """
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    [wheel] = folder.glob("satrap-*.whl")
    subprocess.run([*pip, "install", "--no-deps", wheel], check=True)
    [site] = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"], encoding="utf-8")
    return python


def test_the_first_hour(python: Path, tmp_path: Path) -> None:
    assert len(steps(PAGE.read_text(encoding="utf-8"))) >= 40
    follow(PAGE, tmp_path, python)
