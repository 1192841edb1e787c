"""What becomes of a run that is asked to end before it has begun, and what is said of one that begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from satrap import launch
from satrap.config import load
from tests.launch.runs import RECIPE, make_recipe

STOPPED_WHILE_MEASURING = """
import os, signal, sys
from satrap import launch
from satrap.config import load
from satrap.launch import training

training.measured = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
try:
    launch.train(load(sys.argv[1]), sys.argv[2])
except launch.InterruptedRunError as error:
    print(error)
"""


def test_sigterm_before_the_first_step_leaves_no_folder(tmp_path: Path) -> None:
    recipe, output = make_recipe(tmp_path, RECIPE), tmp_path / "run"
    command = [sys.executable, "-c", STOPPED_WHILE_MEASURING, recipe, output]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert "nothing was kept" in done.stdout
    assert not output.exists()


def test_notices(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, RECIPE + "about: {md5: {rows.csv: '0'}}\n"), ["training.steps=1"])
    said: list[str] = []
    launch.train(recipe, str(tmp_path / "run"), notice=said.append)
    assert len(said) == 2
    assert "rows.csv is not the file the figures in the recipe are for" in said[0]
