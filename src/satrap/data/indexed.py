"""Sources whose row counts are known before reading: Parquet, Arrow files, memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.data.origin import Origin
from satrap.data.shuffle import permutation
from satrap.data.source import Cursor, Piece, Scan


@dataclass(frozen=True, slots=True)
class Part:
    """A run of rows that can be read on its own: a Parquet row group, an Arrow record batch, a slice.

    Args:
        file: index of its file.
        index: index of the part in the file.
        file_row: index of its first row in the file.
        rows: how many rows.
    """

    file: int
    index: int
    file_row: int
    rows: int


class IndexedSource(ABC):
    """Base of sources made of parts with known row counts.

    Shuffling permutes the files and the parts inside each file. Each worker takes a contiguous range of the
    kept rows in that order, so it reads hardly more than its share; ranges differ by at most one row.

    Cursor: [part in pass order, row in the part].

    Args:
        label: short name for messages.
        file_names: name of each file.
        names: columns of the first file.
        parts: all parts in file order.
    """

    def __init__(
        self, label: str, file_names: Sequence[str], names: Sequence[str], parts: Sequence[Part]
    ) -> None:
        self.label, self.file_names, self.names = label, file_names, names
        self._parts = [part for part in parts if part.rows]
        counts = np.array([part.rows for part in self._parts], np.int64)
        self._starts = np.cumsum(counts) - counts

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self.file_names)

    @abstractmethod
    def read(self, part: Part, row: int, columns: Sequence[str] | None) -> Iterator[tuple[int, pa.Table]]:
        """Yield (row in the part, table) from `row` on, in pieces of bounded size; None: all columns."""

    def scan(self, scan: Scan, cursor: Cursor | None) -> Iterator[Piece]:
        """Yield the worker's rows from the start or from a cursor, see `Source.scan`."""
        order = self._order(scan.order)
        low, high = self._share(scan)
        first = self._ordinals(order, scan)
        place, row = cursor or (int(np.searchsorted(first, low, side="right")) - 1, 0)
        columns = None if scan.raw else scan.names
        while place < len(order) and first[place] < high:
            part, start = self._parts[order[place]], int(self._starts[order[place]])
            if cursor is None and scan.rows is None:
                row = max(row, low - int(first[place]))
            for offset, table in self.read(part, row, columns):
                ordinal = int(first[place]) + _kept(scan, start, offset)
                piece = self._piece(scan, part, offset, table, (start, low - ordinal, high - ordinal))
                if piece is not None:
                    yield Piece(piece.table, piece.origin, [place, offset], piece.raw)
                if ordinal + _kept(scan, start + offset, table.num_rows) >= high:
                    return
            place, row = place + 1, 0

    def num_rows(self, scan: Scan) -> int | None:
        """Return how many rows the worker reads."""
        low, high = self._share(scan)
        return high - low

    def progress(self, scan: Scan, cursor: Cursor) -> float | None:
        """Return the share of the worker's rows before the cursor."""
        order = self._order(scan.order)
        low, high = self._share(scan)
        done = int(self._ordinals(order, scan)[cursor[0]]) + cursor[1] - low
        return min(1.0, max(0.0, done / max(1, high - low)))

    def _order(self, seeds: tuple[int, int] | None) -> npt.NDArray[np.int64]:
        if seeds is None:
            return np.arange(len(self._parts), dtype=np.int64)
        files = np.array([part.file for part in self._parts], np.int64)
        groups = [np.flatnonzero(files == file) for file in permutation(self.files, *seeds)]
        inside = [group[permutation(len(group), *seeds, i + 1)] for i, group in enumerate(groups)]
        return np.concatenate(inside) if inside else np.empty(0, np.int64)

    def _ordinals(self, order: npt.NDArray[np.int64], scan: Scan) -> npt.NDArray[np.int64]:
        """Return, for each part in pass order and the end, how many kept rows come before it."""
        counts = [_kept(scan, int(self._starts[i]), self._parts[i].rows) for i in order]
        return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))

    def _share(self, scan: Scan) -> tuple[int, int]:
        total = sum(part.rows for part in self._parts)
        total = int(scan.rows.before(total)) if scan.rows else total
        return total * scan.worker // scan.workers, total * (scan.worker + 1) // scan.workers

    def _piece(
        self, scan: Scan, part: Part, offset: int, table: pa.Table, window: tuple[int, int, int]
    ) -> Piece | None:
        start, low, high = window
        low = max(low, 0)
        if scan.rows is None:
            table = table.slice(low, max(0, high - low))
            rows = np.arange(low, low + table.num_rows, dtype=np.int64)
        else:
            rows = scan.rows.select(start + offset, table.num_rows)[low : max(low, high)]
            table = table.take(rows)
        if not table.num_rows:
            return None
        origin = Origin(self.file_names[part.file], part.file_row + offset + rows)
        values = table.select(scan.names) if scan.raw else table
        return Piece(values, origin, [], table if scan.raw else None)


def _kept(scan: Scan, start: int, count: int) -> int:
    if scan.rows is None:
        return count
    return int(scan.rows.before(start + count) - scan.rows.before(start))
