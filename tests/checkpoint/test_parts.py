"""Row files, and items made in a thread ahead of their use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from satrap.checkpoint.parts import ahead, write_table
from satrap.checkpoint.pieces import PIECE, PIECES
from satrap.checkpoint.storage import Storage
from satrap.store import Chunk


def test_rows_are_written_as_they_are_made(tmp_path: Path) -> None:
    """Not collected first: memory holds two chunks and the pieces of the file, however many there are."""
    written: list[int] = []

    def chunks() -> Iterator[Chunk]:
        for i in range(24):
            written.append((tmp_path / "rows").stat().st_size)
            ids = np.arange(i * 4096, (i + 1) * 4096, dtype=np.uint64)
            yield Chunk("t", ids, np.zeros((4096, 64), np.float32), np.zeros((4096, 64), np.float32))

    entry = write_table(Storage(str(tmp_path)), "rows", "t", chunks())
    assert entry.rows == 24 * 4096
    assert all(size >= (i - 2) * 2 * 4096 * 64 * 4 - PIECES * PIECE for i, size in enumerate(written))


def test_one_more_is_made_while_the_last_is_used() -> None:
    made: list[int] = []
    second = threading.Event()

    def source() -> Iterator[int]:
        for i in range(3):
            made.append(i)
            if i == 1:
                second.set()
            yield i

    items = ahead(source())
    assert next(items) == 0
    assert second.wait(10)
    assert 2 not in made  # no more than one: memory stays bounded
    assert list(items) == [1, 2]


def test_an_error_reaches_the_consumer_in_its_place() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    items = ahead(source())
    assert next(items) == 1
    with pytest.raises(OSError, match="gone"):
        next(items)


def test_the_thread_ends_with_the_iterator() -> None:
    before = threading.active_count()
    items = ahead(iter(range(100)))
    next(items)
    assert threading.active_count() == before + 1
    items.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert list(ahead(iter(()))) == []
