"""A file written in pieces holds what was given, on whatever file system, and tells what went wrong."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from satrap.checkpoint.files import direct_write
from satrap.checkpoint.files.direct_write import PIECE, PiecewiseFile

SIZES = (1, PIECE - 1, 5, 3 * PIECE, 0, 4097, PIECE, 12_345)


def unaligned(*shape: int) -> np.ndarray:
    """Memory that no direct write takes."""
    room = np.empty(4 * shape[0] + 1, np.uint8)[1:]
    return room.view(np.float32)


@pytest.mark.parametrize("way", ["past the cache", "through the cache", "refused by the first write"])
def test_a_file_holds_what_was_written_though_the_giver_changes_it_afterwards(
    way: str, tmp_path: Path
) -> None:
    random, expected = np.random.default_rng(0), b""
    with (
        mock.patch.object(direct_write, "_DIRECT", 0 if way == "through the cache" else direct_write._DIRECT),
        mock.patch.object(
            direct_write, "floats", unaligned if way.startswith("refused") else direct_write.floats
        ),
    ):
        file = PiecewiseFile(str(tmp_path / "file"))
        for size in SIZES:
            data = bytearray(random.bytes(size))
            expected += data
            file.write(memoryview(data))
            data[:] = bytes(size)
        file.sync()
        assert (tmp_path / "file").read_bytes() == expected
        file.write(memoryview(b"more"))
        file.close()
    assert (tmp_path / "file").read_bytes() == expected + b"more"


def test_whole_pieces_go_past_the_page_cache_where_the_file_system_can(tmp_path: Path) -> None:
    direct = getattr(os, "O_DIRECT", 0)
    try:
        os.close(os.open(tmp_path / "probe", os.O_WRONLY | os.O_CREAT | direct))
    except OSError:
        direct = 0
    file = PiecewiseFile(str(tmp_path / "file"))
    file.write(memoryview(bytes(PIECE + 1)))
    assert fcntl.fcntl(file.fileno(), fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0) == direct
    file.close()
    assert (tmp_path / "file").stat().st_size == PIECE + 1


def test_pieces_that_go_through_the_page_cache_leave_it_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, expected, away = list[object](), list[object](), os.POSIX_FADV_DONTNEED
    monkeypatch.setattr(direct_write, "_DIRECT", 0)
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *given: asked.append(given))
    file = PiecewiseFile(str(tmp_path / "file"))
    file.write(memoryview(bytes(9 * PIECE + 5)))
    file.close()
    for end in range(PIECE, 10 * PIECE, PIECE):  # the last one at once, all but 32 MiB for sure
        expected += [(end - PIECE, PIECE, away), (0, max(1, end - 2**25), away)]
    assert asked == expected


@pytest.mark.parametrize("size", [10, 2 * PIECE, 9 * PIECE])
def test_a_full_disk_is_told_before_the_file_counts_as_written(size: int) -> None:
    file = PiecewiseFile("/dev/full")

    def save() -> None:
        file.write(memoryview(bytes(size)))
        file.sync()

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        save()
    file.close(whole=False)


def test_a_file_given_up_is_written_no_further(tmp_path: Path) -> None:
    file = PiecewiseFile(str(tmp_path / "file"))
    file.write(memoryview(bytes(2 * PIECE + 10)))
    file.close(whole=False)
    assert (tmp_path / "file").stat().st_size == 2 * PIECE
    file.close()
