import json
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from satrap.launch.folder import machine
from satrap.launch.folder.machine import MachineLog, machine_facts, processor
from satrap.train import Progress


def test_facts_name_versions_and_no_names(tmp_path: Path) -> None:
    facts = machine_facts()
    assert (facts["torch"], facts["python"]) == (version("torch"), platform.python_version())
    assert facts["cores"] > 0
    assert facts["memory"] > 1 << 28
    assert platform.node() not in json.dumps(facts)


def test_the_processor_is_the_first_named(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Some CPU: v3\nmodel name\t: Other\n")
    assert processor(tmp_path / "cpuinfo") == "Some CPU: v3"
    assert processor(tmp_path / "none") == platform.processor()


def test_each_session_is_a_line_and_a_folder_that_cannot_be_written_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    for step in (0, 30):
        MachineLog(path).started(Progress(step=step))
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["step"], second["step"]) == (0, 30)
    assert abs((datetime.now(UTC) - datetime.fromisoformat(first["time"])).total_seconds()) < 60
    said: list[str] = []
    MachineLog(tmp_path / "none" / "sessions.jsonl", notice=said.append).started(Progress())
    assert "sessions.jsonl cannot be written" in said[0]


def test_cores_have_two_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 1.23456)
    monkeypatch.setattr(machine, "machine_bytes", lambda: 7)
    facts = machine_facts()
    assert (facts["cores"], facts["memory"], facts["processor"]) == (1.23, 7, processor())
    assert {name: facts[name] for name in ("satrap", "numpy", "numba")} == {
        name: version(name) for name in ("satrap", "numpy", "numba")
    }
    assert facts["system"] == f"{platform.system()} {platform.release()} {platform.machine()}"
