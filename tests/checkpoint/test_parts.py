"""Row files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from satrap.checkpoint.parts import write_table
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
