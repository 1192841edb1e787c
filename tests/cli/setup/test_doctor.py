import json
import os
import socket
from pathlib import Path

import pytest

from satrap.tools.doctor import disk, trial
from tests.cli.command import satrap
from tests.launch.runs import make_recipe


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trial, "SECONDS", 0.1)
    monkeypatch.setattr(disk, "MOST_BYTES", disk.PIECE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SATRAP_SECRET", "hush")


def test_a_machine_that_works_and_nothing_private(tmp_path: Path) -> None:
    answer = satrap("doctor")
    assert answer.code == 0, answer.out
    assert answer.out.startswith("ok       versions ")
    for private in ("hush", socket.gethostname(), str(tmp_path), os.path.expanduser("~")):
        assert private not in answer.out


def test_a_recipe_that_cannot_work_exits_1_and_says_what_to_change(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path / "data")
    answer = satrap("doctor", recipe, "--json", "--set", "embedding.memory=999TiB")
    assert answer.code == 1
    [error] = [one for one in json.loads(answer.out) if one["level"] == "error"]
    assert error["check"] == "tables"
    assert "set embedding.memory to at most" in error["fix"]
    lines = satrap("doctor", recipe, "--set", "embedding.memory=999TiB").out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("error "))
    assert lines[place + 1].strip() == f"what to do: {error['fix']}"


def test_a_recipe_that_is_wrong_is_refused(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path / "data")
    satrap("doctor", recipe, "--set", "training.stalenes=2").assert_refused("did you mean 'staleness'?")
