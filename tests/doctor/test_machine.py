import os
import resource
import time
from pathlib import Path

import pytest

from satrap.doctor import machine


def test_this_machine_works() -> None:
    found = {one.check: one for one in machine.machine()}
    assert {
        "processor",
        "cores",
        "huge pages",
        "memory",
        "open files",
        "clock",
        "GPU",
        "kernels",
    } == found.keys()
    assert [one for one in found.values() if one.level == "error"] == []
    assert f"of {os.cpu_count()} cores" in found["cores"].found


@pytest.mark.parametrize(
    ("cores", "present", "level", "fix"),
    [
        (2.0, 2, "ok", ""),
        (1.5, 64, "warning", "set OMP_NUM_THREADS=1"),
        (8.0, 1, "warning", "set OMP_NUM_THREADS=8"),
        (2.0, 1, "ok", ""),
        (0.5, 1, "ok", ""),
    ],
)
def test_threads_and_cores(
    monkeypatch: pytest.MonkeyPatch, cores: float, present: int, level: str, fix: str
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    found = machine.threads(cores, present)
    assert (found.level, found.fix) == (level, fix)


def test_thread_variables_are_shown_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SECRET", "hush")
    found = machine.threads(4, 3).found
    assert "OMP_NUM_THREADS=3" in found
    assert "hush" not in found


def test_abilities_are_flags_of_the_processor(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t: fpu avx2 avx512f_not amx_bf16\nflags\t: avx512f\n")
    assert machine.abilities(tmp_path / "cpuinfo") == ["avx2", "amx_bf16"]
    assert machine.abilities(tmp_path / "none") == []


def test_huge_pages(tmp_path: Path) -> None:
    file = tmp_path / "enabled"
    for text, level in (("always [madvise] never", "ok"), ("always madvise [never]", "warning")):
        file.write_text(text)
        assert machine.huge_pages(file).level == level
    assert machine.huge_pages(tmp_path / "none").level == "ok"


def test_memory_that_is_taken_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   1048576 kB\n")
    assert machine.available(tmp_path) == 1 << 30
    found = machine.memory(tmp_path)
    assert (found.level, "1.0 GiB free" in found.found) == ("warning", True)
    assert machine.available(tmp_path / "none") is None


def test_address_space_below_the_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "address_bytes", lambda _: 1 << 30)
    found = machine.memory()
    assert (found.level, "1.0 GiB of address space" in found.found) == ("warning", True)


def test_open_files() -> None:
    levels = [machine.open_files(limit).level for limit in (256, 1024, resource.RLIM_INFINITY)]
    assert levels == ["warning", "ok", "ok"]


def test_a_clock_that_jumps_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.clock().level == "ok"
    real = time.time
    jumps = iter([0.0, 3600.0])
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    assert machine.clock().level == "warning"


def test_kernels_without_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "folder_of", lambda _: tmp_path / "not" / "yet")
    assert machine.kernels().level == "ok"
    monkeypatch.setattr(machine, "folder_of", lambda _: None)
    assert machine.kernels().level == "warning"
