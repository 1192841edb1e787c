from __future__ import annotations

import json
from pathlib import Path

from satrap.launch.folder.identity import Identity


def test_a_resumed_run_is_the_same_run_and_its_workers_are_newer(tmp_path: Path) -> None:
    file = tmp_path / "identity.json"
    first = Identity.of(file)
    assert not file.exists()  # nobody has heard of it
    assert [first.next(), first.next()] == [0, 1]
    again = Identity.of(file)
    assert (again.run, again.next()) == (first.run, 2)
    assert json.loads(file.read_text()) == {"run": first.run, "generation": 2}


def test_two_runs_differ(tmp_path: Path) -> None:
    assert Identity.of(tmp_path / "a").run != Identity.of(tmp_path / "b").run
