import sys
from pathlib import Path

import pytest

from satrap.config import load
from satrap.tools.doctor import disk, examine, trial
from tests.launch.runs import make_recipe


def test_every_check_reports_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trial, "SECONDS", 0.1)
    monkeypatch.setattr(disk, "MOST_BYTES", disk.PIECE)
    monkeypatch.chdir(tmp_path)
    alone = [one.check for one in examine()]
    assert len(set(alone)) == len(alone)
    assert {"versions", "memory", "loopback", "disk for runs", "training"} <= set(alone)
    found = [one.check for one in examine(load(make_recipe(tmp_path / "data")))]
    assert set(found) - set(alone) == {
        "processes",
        "tables",
        "device",
        "train rows",
        "validation rows",
        "test rows",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_library_that_cannot_be_loaded_ends_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("satrap.tools.doctor.machine")
    monkeypatch.setitem(sys.modules, "satrap.tools.doctor.machine", None)
    *_, last = examine()
    assert (last.check, last.level) == ("libraries", "error")
    assert last.found.startswith("a library cannot be loaded: ")
