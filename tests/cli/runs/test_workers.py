"""`satrap workers` asks a run through its folder, and shows the answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from satrap.errors import ConfigError
from satrap.launch.cluster import control_requests
from tests.cli.answering import asked
from tests.cli.command import satrap

SAID = {"said": "3 workers from step 40 on", "before": 2, "workers": 3, "step": 40, "seconds": 2.5}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_requests, "LOOK_SECONDS", 0.01)


def test_the_run_is_asked_for_so_many(tmp_path: Path) -> None:
    answer, request = asked(tmp_path, SAID, tmp_path, 3, command="workers")
    assert (request.command, request.number) == ("workers", 3)
    assert (answer.code, answer.out) == (0, "3 workers from step 40 on\n")
    plain, _ = asked(tmp_path, SAID, tmp_path, 3, "--json", command="workers")
    assert json.loads(plain.out) == SAID


def test_a_refusal_is_one_clear_error(tmp_path: Path) -> None:
    error = ConfigError("this run cannot continue with 3 workers", fix="give another number")
    answer, _ = asked(tmp_path, error, tmp_path, 3, command="workers")
    answer.assert_refused("cannot continue with 3 workers", "give another number")
    satrap("workers", tmp_path / "none", 3).assert_refused("no run in this folder accepts requests")
    assert "0 is not in the range" in satrap("workers", tmp_path, 0).err
