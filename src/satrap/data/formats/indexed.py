"""Sources with row counts known before reading: Parquet, Arrow files, memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.data.formats.columns import taken
from satrap.data.formats.files import File
from satrap.data.source import Cursor, Origin, Scan, ScanPiece, permutation


@dataclass(frozen=True, slots=True)
class IndexedPart:
    """Rows that can be read separately: a Parquet row group, an Arrow record batch, a slice of a table.

    `file` is the index of its file, `index` its position there, `file_row` the first of its `rows` rows.
    """

    file: int
    index: int
    file_row: int
    rows: int


class IndexedSource(ABC):
    """Base of sources made of parts with known row counts.

    Shuffling permutes the files and the parts inside each file. Each worker takes a contiguous range of the
    kept rows in that order, so it reads little more than its shard; ranges differ by at most one row.

    A cursor is [part in scan order, row in the part]. `schemas` are the columns of each file, `counts` the
    rows of its parts.
    """

    def __init__(
        self,
        label: str,
        file_names: Sequence[str],
        schemas: Sequence[pa.Schema],
        counts: Sequence[Sequence[int]],
    ) -> None:
        self.label, self.file_names, self.files = label, file_names, len(file_names)
        self.names: Sequence[str] = list(schemas[0].names)
        self._schemas = schemas
        self._parts: list[IndexedPart] = []
        for file, rows in enumerate(counts):
            starts = np.cumsum([0, *rows]).tolist()
            self._parts += [IndexedPart(file, i, starts[i], rows[i]) for i in range(len(rows)) if rows[i]]
        self._starts = np.cumsum([0, *(part.rows for part in self._parts)]).tolist()

    @abstractmethod
    def read(self, part: IndexedPart, row: int, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield (row in the part, table with these columns) from `row` on, in pieces of bounded size."""

    def _pieces(self, part: IndexedPart, row: int, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        return self.read(part, row, columns)

    def columns(self) -> Iterator[tuple[str, pa.Schema]]:
        """Yield the name of each file and its columns."""
        return zip(self.file_names, self._schemas, strict=True)

    def scan(self, scan: Scan, cursor: Cursor | None) -> Iterator[ScanPiece]:
        """Yield the worker's rows from the start or from a cursor, see `Source.scan`."""
        order = self._order(scan.order)
        low, high = self._share(scan)
        first = self._kept_before(order, scan)
        place, row = cursor or (int(np.searchsorted(first, low, side="right")) - 1, 0)
        while place < len(order) and first[place] < high:
            part, start = self._parts[order[place]], self._starts[order[place]]
            if cursor is None and scan.rows is None:
                row = max(row, low - int(first[place]))
            kept_raw = scan.raw_of(self._schemas[part.file].names)
            for offset, table in self._pieces(part, row, list(dict.fromkeys([*scan.names, *kept_raw]))):
                before = int(first[place]) + scan.kept_before(start + offset) - scan.kept_before(start)
                indices = scan.kept(start + offset, table.num_rows)
                rows = indices[max(low - before, 0) : high - before]
                if len(rows):
                    origin = Origin(self.file_names[part.file], part.file_row + offset + rows)
                    table = table.slice(rows[0], len(rows)) if scan.rows is None else taken(table, rows)
                    raw = None if scan.raw is None else table.select(kept_raw)
                    yield ScanPiece(table.select(scan.names), origin, [place, offset], raw)
                if before + len(indices) >= high:
                    return
            place, row = place + 1, 0

    def num_rows(self, scan: Scan) -> int | None:
        """Return the number of rows the worker reads."""
        low, high = self._share(scan)
        return high - low

    def progress(self, scan: Scan, cursor: Cursor) -> float | None:
        """Return the fraction of the worker's rows before the cursor."""
        low, high = self._share(scan)
        done = int(self._kept_before(self._order(scan.order), scan)[cursor[0]]) + cursor[1] - low
        return min(1.0, max(0.0, done / max(1, high - low)))

    def _order(self, seeds: tuple[int, int] | None) -> npt.NDArray[np.int64]:
        if seeds is None:
            return np.arange(len(self._parts), dtype=np.int64)
        files = np.array([part.file for part in self._parts], np.int64)
        groups = [np.flatnonzero(files == file) for file in permutation(self.files, *seeds)]
        return np.concatenate(
            [group[permutation(len(group), *seeds, i + 1)] for i, group in enumerate(groups)]
        )

    def _kept_before(self, order: npt.NDArray[np.int64], scan: Scan) -> npt.NDArray[np.int64]:
        """Return the number of kept rows before each part in scan order, and before the end."""
        counts = [scan.kept_before(self._starts[i + 1]) - scan.kept_before(self._starts[i]) for i in order]
        return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))

    def _share(self, scan: Scan) -> tuple[int, int]:
        total = scan.kept_before(self._starts[-1])
        return total * scan.worker // scan.workers, total * (scan.worker + 1) // scan.workers


class IndexedFiles(IndexedSource):
    """Base of file sources made of such parts.

    Each of the `inputs` has the columns in `schemas` and the rows in `counts`. Its partitions are columns of
    text, unless the file has a column of the same name.
    """

    def __init__(
        self, inputs: Sequence[File], schemas: Sequence[pa.Schema], counts: Sequence[Sequence[int]]
    ) -> None:
        self.inputs = inputs
        self._constants = [
            {name: value for name, value in file.partitions if name not in schema.names}
            for file, schema in zip(inputs, schemas, strict=True)
        ]
        whole = [_extended(*pair) for pair in zip(schemas, self._constants, strict=True)]
        super().__init__(inputs[0].name, [file.name for file in inputs], whole, counts)

    def _pieces(self, part: IndexedPart, row: int, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        constants = self._constants[part.file]
        if not constants:
            yield from self.read(part, row, columns)
            return
        in_file = [name for name in columns if name not in constants]
        names = in_file or list(self._schemas[part.file].names)[:1]  # for the number of rows
        for offset, table in self.read(part, row, names):
            for name, value in constants.items():
                column = pa.repeat(pa.scalar(value, pa.string()), table.num_rows)
                table = table.append_column(name, column)
            yield offset, table.select(columns)

    @abstractmethod
    def single(self, file: int) -> IndexedFiles:
        """Return the source of a single file."""

    def rows_by_file(self) -> Sequence[int | None]:
        """Return the number of rows of each file."""
        counts = [0] * self.files
        for part in self._parts:
            counts[part.file] += part.rows
        return counts

    def offset(self, cursor: Cursor) -> int:
        """Return the estimated bytes of a single file before the part at a cursor, in proportion to rows."""
        rows, before = int(self._starts[-1]), int(self._starts[cursor[0]])
        return self.inputs[0].size() * before // max(1, rows)

    def cursors(self, start: Cursor | None) -> Iterator[Cursor] | None:
        """Return the cursors of the parts of a single file."""
        return ([place, 0] for place in range(start[0] if start else 0, len(self._parts)))


def _extended(schema: pa.Schema, constants: Mapping[str, str | None]) -> pa.Schema:
    """Return a schema with columns of text for the constants of a file."""
    for name in constants:
        schema = schema.append(pa.field(name, pa.string()))
    return schema
