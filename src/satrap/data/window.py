"""A stream of encoded pieces: the caller takes any number of rows, and can ask for the position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from satrap.batch import Batch
from satrap.data.rows import concat_rows, slice_rows
from satrap.data.source import Cursor


@dataclass(frozen=True, slots=True)
class Mark:
    """A place between two rows of a pass.

    Args:
        cursor: the source's cursor of a piece; None for the start of the pass.
        skip: rows from the start of that piece.
        buffer: number of the shuffle buffer that starts here, from 0.
        batch: batches of that buffer already yielded.
    """

    cursor: Cursor | None = None
    skip: int = 0
    buffer: int = 0
    batch: int = 0


class Rows:
    """Pieces of a pass as one run of rows.

    Args:
        pieces: (rows, cursor) of each piece, from the piece of `start` on.
        start: where to begin; `skip` rows of the first pieces are dropped.
    """

    def __init__(self, pieces: Iterator[tuple[Batch, Cursor]], start: Mark) -> None:
        self._pieces, self._start = pieces, start
        self._skip = start.skip
        self._held: list[tuple[Batch, Cursor, int]] = []
        self._rows = 0
        self._last = Mark(start.cursor, start.skip)

    @property
    def mark(self) -> Mark:
        """Position of the next row."""
        if not self._held:
            return self._last
        _, cursor, done = self._held[0]
        return Mark(cursor, done)

    def fill(self, count: int) -> None:
        """Read ahead until at least `count` rows are held, or the pass ends."""
        while self._rows < count:
            found = next(self._pieces, None)
            if found is None:
                return
            batch, cursor = found
            done = min(self._skip, batch.size)
            self._skip -= done
            if done < batch.size:
                self._held.append((batch, cursor, done))
                self._rows += batch.size - done

    def take(self, count: int) -> Batch | None:
        """Return the next `count` rows, fewer at the end of the pass, or None when there are none left."""
        self.fill(count)
        parts: list[Batch] = []
        while self._held and count:
            batch, cursor, done = self._held[0]
            stop = min(done + count, batch.size)
            parts.append(slice_rows(batch, done, stop))
            count -= stop - done
            self._rows -= stop - done
            self._last = Mark(cursor, stop)
            if stop == batch.size:
                self._held.pop(0)
            else:
                self._held[0] = (batch, cursor, stop)
        return concat_rows(parts) if parts else None
