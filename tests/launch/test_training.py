"""What becomes of a run that is asked to end before it has begun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
