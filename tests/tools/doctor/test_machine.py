import os
import resource
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from satrap.tools.doctor import machine


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
        (1.5, 2, "ok", ""),
        (1.5, 3, "warning", "set OMP_NUM_THREADS=1"),
        (0.5, 2, "warning", "set OMP_NUM_THREADS=1"),
        (4.0, 1, "warning", "set OMP_NUM_THREADS=4"),
        (3.9, 1, "ok", ""),
        (8.0, 2, "ok", ""),
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
    for name in machine.THREAD_VARIABLES[1:]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    found = "4 of 64 cores are usable; PyTorch uses 3 threads"
    assert machine.threads(4, 3).found == f"{found} (OMP_NUM_THREADS=3)"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert machine.threads(4, 3).found == found


def test_abilities_are_flags_of_the_processor(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t: fpu avx2 avx512f_not amx_bf16\nflags\t: avx512f\n")
    assert machine.abilities(tmp_path / "cpuinfo") == ["avx2", "amx_bf16"]
    assert machine.abilities(tmp_path / "none") == []


def test_huge_pages(tmp_path: Path) -> None:
    file = tmp_path / "enabled"
    for text, level in (("always [madvise] never", "ok"), ("always madvise [never]", "warning")):
        file.write_text(text)
        assert machine.huge_pages(file).level == level
        assert machine.huge_pages(file).found.split(":")[0] == text.partition("[")[2].partition("]")[0]
    file.write_text("other")
    assert machine.huge_pages(file).found == "unknown"
    assert machine.huge_pages(tmp_path / "none").level == "ok"


def test_memory_that_is_taken_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   1048576 kB\n")
    assert machine.available(tmp_path) == 1 << 30
    found = machine.memory(tmp_path)
    assert (found.level, "1.0 GiB free" in found.found) == ("warning", True)
    assert machine.available(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("limit", "free", "level", "text"),
    [
        (8 << 30, 2 << 20, "ok", "8.0 GiB for this machine or container, 2.0 GiB free"),
        (8 << 30, (2 << 20) - 1, "warning", "8.0 GiB for this machine or container, 2.0 GiB free: little"),
        (1 << 30, 4 << 20, "warning", "1.0 GiB for this machine or container, 4.0 GiB free: little"),
        (2 << 30, None, "ok", "2.0 GiB for this machine or container"),
        ((2 << 30) - 1, None, "warning", "2.0 GiB for this machine or container: little"),
    ],
)
def test_little_memory_is_below_2_gib(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: int, free: int | None, level: str, text: str
) -> None:
    monkeypatch.setattr(machine, "machine_bytes", lambda _: limit)
    (tmp_path / "meminfo").write_text("" if free is None else f"MemAvailable: {free} kB\n")
    found = machine.memory(tmp_path)
    assert (found.level, found.found) == (level, text)


def test_address_space_below_the_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "address_bytes", lambda _: 1 << 30)
    found = machine.memory()
    assert (found.level, "1.0 GiB of address space" in found.found) == ("warning", True)


def test_open_files() -> None:
    found = [machine.open_files(limit) for limit in (1023, 1024, resource.RLIM_INFINITY)]
    assert [(one.level, one.found, one.fix) for one in found] == [
        ("warning", "at most 1023 per process: few", "ulimit -n 4096"),
        ("ok", "at most 1,024 per process", ""),
        ("ok", "no limit", ""),
    ]


def test_a_clock_that_jumps_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.clock().level == "ok"
    real = time.time
    jumps = iter([0.0, 3600.0])
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    jumped = machine.clock()
    assert (jumped.level, "by monotonic time," in jumped.found) == ("warning", True)
    monkeypatch.setattr(time, "time", real)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert machine.clock().level == "warning"


def test_devices_that_pytorch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [SimpleNamespace(name="A", total_memory=1 << 40), SimpleNamespace(name="B", total_memory=3 << 30)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", seen.__getitem__)
    assert machine.gpu().found == "cuda:0 A, 1.0 TiB; cuda:1 B, 3.0 GiB"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine.gpu().found.startswith("PyTorch sees none")


def test_a_processor_without_wide_vectors_or_one_dnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for flags, fast, level in (([], True, "warning"), (["avx2"], True, "ok"), (["avx2"], False, "warning")):
        monkeypatch.setattr(machine, "abilities", lambda flags=flags: flags)
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda fast=fast: fast)
        found = machine._processor()
        assert (found.level, "without oneDNN" in found.found) == (level, not fast)
        assert ("; avx2; " if flags else "; no wide vectors; ") in found.found
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr(machine, "abilities", list)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert machine._processor().level == "ok"


def test_kernels_without_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "folder_of", lambda _: tmp_path / "not" / "yet")
    assert machine.kernels().level == "ok"
    monkeypatch.setattr(machine, "folder_of", lambda _: None)
    found = machine.kernels()
    assert (found.level, found.found.partition(":")[0]) == ("warning", "compiled kernels cannot be cached")
