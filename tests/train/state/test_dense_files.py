"""Processes write their parts of a network into one checkpoint, all or none."""

from __future__ import annotations

import errno
import json
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from satrap.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import Manifest, read_manifest
from satrap.checkpoint.saved_dense import DensePart
from satrap.dense import Workers
from satrap.errors import CheckpointError
from satrap.train.state import dense_files
from satrap.train.state.dense_files import DenseFiles, all_reach, opened
from tests.dense.threads import together


class Two(Workers):
    """One of two workers in threads that post for each other."""

    def __init__(self, rank: int, board: dict[str, bytes], news: threading.Condition) -> None:
        self.rank, self.size, self._board, self._news = rank, 2, board, news

    def share(self, data: bytes) -> bytes:
        if self.rank == 0:
            self._board["shared"] = data
        return self._board["shared"]

    def post(self, key: str, data: bytes) -> None:
        with self._news:
            self._board[key] = data
            self._news.notify_all()

    def posted(self, key: str, *, readers: int = 1) -> bytes:
        with self._news:
            assert self._news.wait_for(lambda: key in self._board, 10)
            return self._board[key]


def two() -> list[Two]:
    board, news = dict[str, bytes](), threading.Condition()
    return [Two(rank, board, news) for rank in range(2)]


def files_of_two(second: DensePart, workers: list[Two] | None = None) -> list[DenseFiles]:
    parts = [DensePart({"w": torch.ones(2)}, {}, {"w": ([4], [0])}), second]
    return [DenseFiles(worker, part) for worker, part in zip(workers or two(), parts, strict=True)]


def test_snapshots_of_the_same_workers_do_not_hear_of_each_other(tmp_path: Path) -> None:
    workers = two()
    for number in (2.0, 3.0):
        part = DensePart({"w": torch.full((2,), number)}, {}, {"w": ([4], [2])})
        first, second = files_of_two(part, workers)
        place = str(tmp_path / str(number))
        with ThreadPoolExecutor() as pool:
            helping = pool.submit(second.assist)
            write_checkpoint(place, Checkpoint({}, {}, {}, (), dense=first.write))
            helping.result()
        assert read_checkpoint(place).model["w"].tolist() == [1, 1, number, number]


def test_two_write_one_network_and_a_part_that_cannot_be_written_leaves_the_checkpoint_before(
    tmp_path: Path,
) -> None:
    place = str(tmp_path / "saved")
    good = DensePart({"w": torch.full((2,), 2.0)}, {}, {"w": ([4], [2])})
    bad = DensePart({"w": torch.full((2,), 3.0).as_subclass(Unwritable)}, {}, {"w": ([4], [2])})
    large = DensePart({"w": torch.full((2,), 3.0).as_subclass(TooLarge)}, {}, {"w": ([4], [2])})
    for part in (good, bad, large):
        first, second = files_of_two(part)
        with ThreadPoolExecutor() as pool:
            helping = pool.submit(second.assist)
            checkpoint = Checkpoint({}, {}, {}, (), dense=first.write)
            if part is good:
                write_checkpoint(place, checkpoint)
            else:
                with pytest.raises(
                    CheckpointError, match=r"worker 1 could not write its part.* no (space|room)"
                ):
                    write_checkpoint(place, checkpoint)
            first.release()
            with pytest.raises(MemoryError) if part is large else nullcontext():
                helping.result()
        assert json.loads(first._workers.posted(first._key))[0] == place  # it was told once
        assert read_checkpoint(place).model["w"].tolist() == [1, 1, 2, 2]


class Unwritable(torch.Tensor):
    """A tensor that stands for a full disk."""

    def cpu(self, *_: object, **__: object) -> torch.Tensor:
        raise OSError("no space left on device")

    def detach(self) -> torch.Tensor:
        return self


class TooLarge(Unwritable):
    """A tensor that cannot be copied."""

    def cpu(self, *_: object, **__: object) -> torch.Tensor:
        raise MemoryError("no room in memory")


def test_who_is_let_go_writes_nothing(tmp_path: Path) -> None:
    first, second = files_of_two(DensePart({}, {}, {}))
    first.release()
    second.assist()
    assert not list(tmp_path.iterdir())


def test_a_process_alone_reaches_its_folder_and_leaves_nothing_there(tmp_path: Path) -> None:
    assert all_reach(Workers(), str(tmp_path / "new"))
    assert not list((tmp_path / "new").iterdir())
    write_checkpoint(str(tmp_path), Checkpoint({}, {"w": torch.ones(3)}, {}, ()))
    with opened(Workers(), str(tmp_path), whole=True) as found:
        assert found is not None
        assert found.weights["w"].read([1], [2]).tolist() == [1, 1]


def test_processes_reach_a_folder_together(tmp_path: Path) -> None:
    place = tmp_path / "new"
    reached = together(2, lambda workers: all_reach(workers, str(place) if workers.rank == 0 else ""))
    assert reached == [True, True]
    assert list(place.iterdir()) == []
    (tmp_path / "file").touch()
    assert not all_reach(Workers(), str(tmp_path / "file" / "new"))
    write_checkpoint(str(place), Checkpoint({}, {"w": torch.ones(3)}, {}, ()))
    assert together(2, lambda workers: read_by(workers, str(place), whole=True)) == 2 * [[[1, 1, 1], []]]


def read_by(workers: Workers, place: str, *, whole: bool) -> Any:
    """Return what a process reads of the network `w` and of the optimizer, or None."""
    with opened(workers, place if workers.rank == 0 else "", whole=whole) as found:
        if found is None:
            return None
        state = found.optimizer.get("state", {})
        return [found.weights["w"].whole().tolist(), [state[0]["m"].read([1], [3]).tolist()] if state else []]


def unseen(monkeypatch: pytest.MonkeyPatch, ranks: Sequence[int]) -> None:
    """Some processes, each a thread, do not reach the checkpoint."""
    seen = read_manifest

    def read(storage: Storage) -> Manifest:
        if threading.current_thread().name in [f"rank {rank}" for rank in ranks]:
            raise FileNotFoundError(storage.url)
        return seen(storage)

    monkeypatch.setattr(dense_files, "read_manifest", read)


def written(place: Path) -> str:
    """Write a network, and the state of its optimizer, of 40 numbers each."""
    optimizer = {"state": {0: {"m": torch.arange(40.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    write_checkpoint(str(place), Checkpoint({}, {"w": torch.arange(40.0) / 2}, optimizer, ()))
    return str(place)


@pytest.mark.parametrize("ranks", [[1], [1, 2]])
def test_who_does_not_reach_the_files_gets_copies_of_them_for_a_while(
    ranks: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = written(tmp_path / "place")
    monkeypatch.setattr(dense_files, "READ", 64)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    unseen(monkeypatch, ranks)
    expected = [(torch.arange(40.0) / 2).tolist(), [[1, 2, 3]]]
    assert together(3, lambda workers: read_by(workers, place, whole=False)) == 3 * [expected]
    assert together(3, lambda workers: read_by(workers, place, whole=True)) == 3 * [None]
    assert list((tmp_path / "temporary").iterdir()) == []


def test_all_are_told_that_one_has_no_room_for_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = written(tmp_path / "place")
    unseen(monkeypatch, [1])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opening = Path.open

    def full(path: Path, mode: str = "r", **more: Any) -> Any:
        if mode == "ab":
            raise OSError(errno.ENOSPC, "No space left on device")
        return opening(path, mode, **more)

    monkeypatch.setattr(Path, "open", full)

    def work(workers: Workers) -> str:
        with pytest.raises(CheckpointError) as raised, opened(workers, place, whole=False):
            pass
        return raised.value.what

    here, there = together(2, work)
    assert here == "1 of 2 workers could not copy the network: not this one"
    assert there == "1 of 2 workers could not copy the network: [Errno 28] No space left on device"


class Elsewhere(Workers):
    """Process 0 of two, of which the other sees another disk."""

    size = 2

    def count(self, values: Sequence[float]) -> list[float]:
        return list(values)


def test_one_that_does_not_see_the_folder_is_enough_to_give_it_up(tmp_path: Path) -> None:
    assert not all_reach(Elsewhere(), str(tmp_path))
    write_checkpoint(str(tmp_path), Checkpoint({}, {"w": torch.ones(3)}, {}, ()))
    with opened(Elsewhere(), str(tmp_path), whole=True) as found:
        assert found is None
