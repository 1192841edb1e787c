import shutil
import time
from collections import namedtuple
from pathlib import Path

import pytest

from satrap.config import load
from satrap.tools.doctor import disk
from tests.launch.runs import RECIPE, UNBOUNDED, make_recipe

Usage = namedtuple("Usage", "total used free")


def test_a_folder_that_does_not_exist_yet_is_tested_above_and_left_as_it_was(tmp_path: Path) -> None:
    found = disk.folder("runs", tmp_path / "not" / "yet")
    assert found.level in ("ok", "warning")  # this disk may be slow
    assert "free; writes" in found.found
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in found.found


@pytest.mark.parametrize(
    ("free", "speed", "skew", "level", "word"),
    [
        (1 << 40, 1e9, 0, "ok", "free"),
        (1 << 35, 1e9, 0, "error", "are needed"),
        (1 << 40, 1e6, 0, "warning", "slow"),
        (1 << 40, 1e9, -5, "warning", "-5 s off"),
        (1 << 36, 50e6, 2.0, "ok", "free"),
        ((1 << 36) - 1, 1e9, 0, "error", "but 64 GiB are needed"),
        (1 << 36, 49e6, 0, "warning", "slow"),
        (1 << 36, 1e9, 2.1, "warning", "+2 s off"),
    ],
)
def test_space_speed_and_clock(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    free: int,
    speed: float,
    skew: float,
    level: str,
    word: str,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 41, 0, free))
    monkeypatch.setattr(disk, "_write", lambda _: (speed, skew))
    found = disk.folder("tier", tmp_path, 1 << 36)
    assert found.level == level
    assert word in found.found


def test_little_space_and_a_disk_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(disk, "_write", lambda _: (1e9, 0))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1, 0, 1 << 20))
    little = disk.folder("runs", tmp_path)
    assert (little.level, little.fix) == ("warning", "free space")
    assert little.found.endswith("little space")
    for free, level in ((1 << 30, "ok"), ((1 << 30) - 1, "warning")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: Usage(1, 0, free))
        assert disk.folder("runs", tmp_path).level == level

    def full(_: Path) -> tuple[float, float]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "_write", full)
    found = disk.folder("runs", tmp_path)
    assert (found.level, "No space left" in found.found) == ("error", True)


def test_what_is_written_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk, "MOST_BYTES", 2 * disk.PIECE)
    start = time.perf_counter()
    speed, skew = disk._write(tmp_path)
    assert speed >= 2 * disk.PIECE / (time.perf_counter() - start)
    assert abs(skew) < 60
    monkeypatch.setattr(disk, "MOST_SECONDS", 0.0)
    assert disk._write(tmp_path)[0] == 0


def test_folders_of_a_recipe(tmp_path: Path) -> None:
    embedding = "embedding: {memory: 1MiB, eviction: {policy: lru}, tier: {path: fast, size: 1GiB}}\n"
    text = RECIPE.replace(UNBOUNDED, embedding + "checkpoint: {url: there}\n")
    found = list(disk.folders(load(make_recipe(tmp_path, text))))
    assert [(what, str(path), need) for what, path, need in found] == [
        ("runs", "runs", 0),
        ("snapshots", "there", 0),
        ("tier", "fast", 1 << 30),
    ]
    behind = RECIPE.replace(UNBOUNDED, embedding.replace("fast", "memory"))
    assert [what for what, _, _ in disk.folders(load(make_recipe(tmp_path, behind)))] == ["runs"]
    far = load(make_recipe(tmp_path, RECIPE), ["checkpoint.url=s3://bucket/x"])
    assert [what for what, _, _ in disk.folders(far)] == ["runs"]
