"""The protocol of row sources: the rows of a scan, their order, and their origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.data.encode.hashing import hash_ids
from satrap.data.formats.files import File
from satrap.errors import ConfigError, DataError, did_you_mean
from satrap.runtime.arguments import checked

Cursor = list[int]
"""Position of a scan, as plain numbers in a format private to the source."""


@checked()
@dataclass(frozen=True, slots=True)
class RowSplit:
    """Keeps the rows whose index over all files, modulo `modulo`, is in `keep`.

    `RowSplit(10, (9,))` is the usual "every tenth row is the test set"; indices count from 0 over the sorted
    list of files, independent of shuffling.

    Args:
        modulo: >= 1.
        keep: remainders to keep, each in 0..modulo-1.

    Raises:
        ConfigError: numbers out of range.
    """

    modulo: int
    keep: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", tuple(sorted(set(self.keep))))
        if self.modulo < 1 or not self.keep or not all(0 <= k < self.modulo for k in self.keep):
            raise ConfigError(
                f"rows: modulo {self.modulo} with keep {list(self.keep)} is invalid",
                fix="set modulo >= 1 and keep to remainders from 0 to modulo - 1",
            )

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Return bool[modulo], True for kept remainders."""
        return np.isin(np.arange(self.modulo), self.keep)

    def before(self, index: Any) -> Any:
        """Return the number of kept rows with an index below `index` (scalar or array)."""
        table = np.concatenate(([0], np.cumsum(self.mask)))
        return index // self.modulo * len(self.keep) + table[index % self.modulo]

    def select(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """Return the kept rows among start..start+count, as offsets from `start`."""
        offsets = np.arange(count, dtype=np.int64)
        return offsets[self.mask[(start + offsets) % self.modulo]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The rows and columns that one scan reads, and their order.

    Columns in `ids` are read unchanged (from CSV as text), columns in `numbers` as numbers if the source has
    a choice (CSV); a column in both is text. Columns in `raw` are also kept unchanged, if present; None:
    no such columns. `order`, (seed, epoch), shuffles files and row groups; None means file order. Worker
    `worker` of `workers` reads its shard of the kept `rows` (None: all).
    """

    ids: Sequence[str]
    numbers: Sequence[str]
    raw: Sequence[str] | None = None
    order: tuple[int, int] | None = None
    rows: RowSplit | None = None
    worker: int = 0
    workers: int = 1

    @property
    def names(self) -> list[str]:
        """All columns, without duplicates."""
        return list(dict.fromkeys([*self.ids, *self.numbers]))

    def raw_of(self, names: Iterable[str]) -> list[str]:
        """Return the columns of a file that are kept unchanged."""
        there = set(names)
        return [name for name in self.raw or () if name in there]

    def kept_before(self, index: int) -> int:
        """Return the number of kept rows with an index below `index`."""
        return index if self.rows is None else int(self.rows.before(index))

    def kept(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """Return the kept rows among start..start+count, as offsets from `start`."""
        return np.arange(count, dtype=np.int64) if self.rows is None else self.rows.select(start, count)


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of the rows of a chunk: the name of the file (or object in memory) and row numbers.

    `rows` is int64[n], counted from 0 without header, comments and blank lines.
    """

    file: str
    rows: npt.NDArray[np.int64]

    def at(self, row: int, column: str) -> str:
        """Return the location of a value for an error message; row numbers there start at 1."""
        return f"{self.file}, row {int(self.rows[row]) + 1}, column {column!r}"


@dataclass(frozen=True, slots=True)
class ScanPiece:
    """Some consecutive rows of a scan: its columns and, if requested, its `raw` columns.

    `Source.scan` from `cursor` starts with this piece.
    """

    table: pa.Table
    origin: Origin
    cursor: Cursor
    raw: pa.Table | None = None


@runtime_checkable
class Source(Protocol):
    """A list of files, or an object in memory, that can be scanned any number of times.

    Attributes:
        label: short name for messages.
        names: columns of the first file.
        files: number of files; 1 in memory.
    """

    label: str
    names: Sequence[str]
    files: int

    def columns(self) -> Iterator[tuple[str, pa.Schema]]:
        """Yield the name of each file and its columns; CSV columns are text."""

    def scan(self, scan: Scan, cursor: Cursor | None) -> Iterator[ScanPiece]:
        """Yield pieces from the start or from a piece's cursor; always the same rows in the same order."""

    def num_rows(self, scan: Scan) -> int | None:
        """Return the number of rows of a whole scan, or None if it is unknown before reading."""

    def progress(self, scan: Scan, cursor: Cursor) -> float | None:
        """Return the fraction of the scan before `cursor`, 0..1, or None if it is unknown."""


@runtime_checkable
class FileSource(Source, Protocol):
    """A source of files, which can be split by bytes.

    Attributes:
        inputs: the files.
    """

    inputs: Sequence[File]

    def single(self, file: int) -> FileSource:
        """Return the source of a single file."""

    def rows_by_file(self) -> Sequence[int | None]:
        """Return the number of rows of each file, None if it is unknown before reading."""

    def offset(self, cursor: Cursor) -> int:
        """Return the bytes of a single file before a cursor; for compressed text, decompressed bytes."""

    def cursors(self, start: Cursor | None) -> Iterator[Cursor] | None:
        """Return the cursors of a single file's pieces, from the start or a cursor, without reading columns.

        None if finding cursors takes as long as reading the rows.
        """


def check_columns(needed: Iterable[str], columns: Sequence[str], file: str) -> None:
    """Raise `DataError` for the first needed column that a file lacks, or has more than once.

    The error for a missing column suggests the nearest name.
    """
    there = Counter(columns)
    for column in needed:
        if there[column] > 1:
            raise DataError(
                f"{there[column]} columns have the name {column!r}",
                where=file,
                why="the schema needs this column, and the name is ambiguous",
                fix="give each column a unique name, or remove these columns",
            )
        if column not in there:
            shown = ", ".join(columns[:12]) + (", ..." if len(columns) > 12 else "")
            raise DataError(
                f"column {column!r} is missing",
                where=file,
                why="the schema needs the column",
                fix=f"{did_you_mean(column, columns, cutoff=0.5)}use one of the columns: {shown}",
            )


def permutation(count: int, *seeds: int) -> npt.NDArray[np.int64]:
    """Return a permutation of 0..count-1 that depends only on `seeds`.

    It is the same on every machine and with every NumPy version: each index is hashed with the seeds (a
    bijection, so all keys are different) and the keys are sorted. The order of the seeds matters.
    """
    key = 0
    for seed in seeds:
        key = int(hash_ids(np.array([seed % 2**64], np.uint64), key)[0])
    return np.argsort(hash_ids(np.arange(count, dtype=np.int64), key)).astype(np.int64, copy=False)
