"""The local disk calls the operating system as the power-cut test assumes."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from satrap.checkpoint import write_checkpoint
from satrap.checkpoint.disk import LocalDisk, RemoteDisk
from tests.checkpoint.states import make_checkpoint


def test_every_file_and_every_new_folder_is_synced(tmp_path: Path) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def remember(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    place = tmp_path / "a" / "b" / "c"
    with mock.patch.object(os, "fsync", remember):
        write_checkpoint(str(place), make_checkpoint())
    files = [p for p in place.rglob("*") if p.is_file()]
    assert len(files) == 6
    for path in [*files, *(p.parent for p in files), place.parent, place.parent.parent, tmp_path]:
        assert path.stat().st_ino in synced, path


def test_a_file_is_exchanged_by_rename(tmp_path: Path) -> None:
    """Whoever has the old file open keeps reading the old content."""
    disk = LocalDisk()
    disk.put(str(tmp_path / "file"), b"old")
    with disk.open(str(tmp_path / "file")) as reader:
        disk.put(str(tmp_path / "file"), b"newer")
        assert reader.read() == b"old"
    assert (tmp_path / "file").read_bytes() == b"newer"
    assert disk.list(str(tmp_path)) == ["file"]


def test_a_new_file_takes_the_place_of_none(tmp_path: Path) -> None:
    disk = LocalDisk()
    disk.put(str(tmp_path / "file"), b"first", new=True)
    with pytest.raises(FileExistsError):
        disk.put(str(tmp_path / "file"), b"second", new=True)
    assert (tmp_path / "file").read_bytes() == b"first"


class Plain(MemoryFileSystem):
    """A store that knows no conditions, and says so in one of the ways of fsspec's stores."""

    cachable = False
    refusal: type[Exception]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
        if mode == "create":
            raise self.refusal("no such mode")
        super().pipe_file(path, value, **options)


@pytest.mark.parametrize("refusal", [NotImplementedError, TypeError, ValueError])
def test_a_store_without_conditions_is_asked_first(refusal: type[Exception]) -> None:
    fs = Plain()
    fs.refusal = refusal
    disk, path = RemoteDisk(fs), f"/{refusal.__name__}"
    disk.put(path, b"first", new=True)
    with pytest.raises(FileExistsError):
        disk.put(path, b"second", new=True)
    assert fs.cat_file(path) == b"first"
    disk.put(path, b"third")
    assert fs.cat_file(path) == b"third"
