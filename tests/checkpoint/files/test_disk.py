"""The local disk calls the operating system as the power-cut test assumes."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from satrap.checkpoint import Series, read_checkpoint, write_checkpoint
from satrap.checkpoint.files import storage
from satrap.checkpoint.files.disk import LocalDisk, RemoteDisk
from satrap.errors import CheckpointError
from tests import faults
from tests.checkpoint.states import equal, make_checkpoint

ROUNDS = 20


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


def racer(path: str, mine: bytes, start: Any, told: Any) -> None:
    """Put a new file as soon as all are ready, in a process of its own."""
    disk = LocalDisk()
    for number in range(ROUNDS):
        start.wait(60)
        try:
            disk.put(f"{path}-{number}", mine, new=True)
            told.put((number, mine))
        except FileExistsError:
            told.put((number, None))


@pytest.mark.cluster
def test_of_processes_that_put_a_new_file_at_once_just_one_does(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, told = context.Barrier(2), context.Queue()
    contents = [bytes([letter]) * 100_000 for letter in b"ab"]
    racers = [
        context.Process(target=racer, args=(str(tmp_path / "file"), content, start, told))
        for content in contents
    ]
    for process in racers:
        process.start()
    answers = [told.get(timeout=120) for _ in range(2 * ROUNDS)]
    for process in racers:
        process.join()
    for number in range(ROUNDS):
        [won] = [mine for at, mine in answers if at == number and mine is not None]
        assert (tmp_path / f"file-{number}").read_bytes() == won
    assert len(list(tmp_path.iterdir())) == ROUNDS
    assert {won for _, won in answers} == {*contents, None}, "they never met"


def test_a_new_file_is_put_where_there_are_no_links(tmp_path: Path) -> None:
    disk = LocalDisk()
    with mock.patch.object(os, "link", side_effect=OSError(errno.EPERM, "no links")):
        disk.put(str(tmp_path / "file"), b"first", new=True)
        with pytest.raises(FileExistsError):
            disk.put(str(tmp_path / "file"), b"second", new=True)
    assert (tmp_path / "file").read_bytes() == b"first"
    assert disk.list(str(tmp_path)) == ["file"]


def test_what_a_killed_save_left_beside_the_manifest_goes_with_the_next(tmp_path: Path) -> None:
    """Killed before the manifest had its name, and between having two names and losing the first."""
    for point in ("disk.link", "disk.remove"):
        place = tmp_path / point
        with faults.armed(point, faults.fail(KeyboardInterrupt)), pytest.raises(KeyboardInterrupt):
            write_checkpoint(str(place), make_checkpoint())
        assert [p.name.endswith(".new") for p in place.glob("manifest*")].count(True) == 1
        write_checkpoint(str(place), make_checkpoint())
        assert [p.name for p in place.glob("manifest*")] == ["manifest.json"]


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


def test_a_folder_of_a_store_may_be_there_already(tmp_path: Path) -> None:
    disk, path = RemoteDisk(LocalFileSystem()), str(tmp_path / "a" / "b")
    for _ in range(2):
        disk.make_folder(path)
    assert os.path.isdir(path)


class StrangeError(Exception):
    """An error of a store's client: of no family that anybody else knows."""


class ServerError(OSError):
    """What s3fs makes of an error of the server: of a disk, it would say that the bytes are lost."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EIO, what)


class Ticking:
    """Something of which the call that brings a count to nothing raises an error."""

    left, raised = 10**9, StrangeError

    def __init__(self, inner: Any) -> None:
        object.__setattr__(self, "inner", inner)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found) or name.startswith("_"):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            Ticking.left -= 1
            if Ticking.left == 0:
                raise Ticking.raised("by surprise")
            result = found(*arguments, **named)
            return Ticking(result) if name == "open" else result

        return call


RAISED = [StrangeError, ServerError, KeyError, PermissionError, TimeoutError, NotImplementedError]


@pytest.mark.chaos
@pytest.mark.parametrize(
    "raised",
    [*RAISED[:2], *(pytest.param(kind, marks=pytest.mark.slow) for kind in RAISED[2:])],
    ids=lambda kind: kind.__name__,
)
def test_whatever_a_store_raises_the_older_snapshot_stays_and_the_next_save_works(
    raised: type[Exception], tmp_path: Path
) -> None:
    """Each call to the file system and its files fails once, in a save, then in loading."""
    system = MemoryFileSystem()
    told: list[str] = []
    with (
        mock.patch.object(storage, "RemoteDisk", lambda fs: RemoteDisk(Ticking(fs))),
        mock.patch.object(Ticking, "raised", raised),
        mock.patch.object(Ticking, "left", 10**9),
    ):
        Series(f"memory://{tmp_path.name}/0").write(1, make_checkpoint(1))
        for k in itertools.count(1):
            system.copy(f"/{tmp_path.name}/0", f"/{tmp_path.name}/{k}", recursive=True)
            series = Series(f"memory://{tmp_path.name}/{k}")
            before, Ticking.left = len(told), k
            try:
                series.write(2, make_checkpoint(2))
            except CheckpointError as error:
                told.append(error.what)
            ended, Ticking.left = Ticking.left > 0, 10**9
            equal(make_checkpoint(1), read_checkpoint(series.place(1)))
            if len(told) == before:
                equal(make_checkpoint(2), read_checkpoint(series.place(2)))
            series.write(3, make_checkpoint(3))
            equal(make_checkpoint(3), read_checkpoint(series.place(3)))
            if ended:
                break
        assert len(told) > 10
        for k in itertools.count(1):
            before, Ticking.left = len(told), k
            try:
                equal(make_checkpoint(3), series.read(3)[1])
            except CheckpointError as error:
                told.append(error.what)
            if len(told) == before and Ticking.left > 0:
                break
        assert k > 10
        Ticking.left = 10**9
        assert series.repair() == (3, {})
    assert all("by surprise" in what and "damaged" not in what for what in told)
    system.rm(f"/{tmp_path.name}", recursive=True)
