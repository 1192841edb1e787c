"""The protocol of all sources of rows: which rows a pass reads, in which order, and where each came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.arguments import checked
from satrap.data.files import File
from satrap.data.hashing import hash_ids
from satrap.errors import ConfigError, DataError, did_you_mean

Cursor = list[int]
"""Where a scan stands, as plain numbers whose meaning is the source's own."""


@checked()
@dataclass(frozen=True, slots=True)
class RowSplit:
    """Keeps the rows whose index in the whole list of files, modulo `modulo`, is one of `keep`.

    `RowSplit(10, (9,))` is the usual "every tenth row is the test set"; indices count from 0 over the
    sorted list of files, whatever the shuffle.

    Args:
        modulo: >= 1.
        keep: remainders kept, each in 0..modulo-1.

    Raises:
        ConfigError: impossible numbers.
    """

    modulo: int
    keep: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", tuple(sorted(set(self.keep))))
        if self.modulo < 1 or not self.keep or not all(0 <= k < self.modulo for k in self.keep):
            raise ConfigError(
                f"rows: modulo {self.modulo} with keep {list(self.keep)} is impossible",
                fix="modulo is >= 1 and keep lists remainders from 0 to modulo - 1",
            )

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Return bool[modulo], True for kept remainders."""
        return np.isin(np.arange(self.modulo), self.keep)

    def before(self, index: Any) -> Any:
        """Return how many rows with an index below `index` (scalar or array) are kept."""
        table = np.concatenate(([0], np.cumsum(self.mask)))
        return index // self.modulo * len(self.keep) + table[index % self.modulo]

    def select(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """Return which of rows start..start+count are kept, as offsets from `start`."""
        offsets = np.arange(count, dtype=np.int64)
        return offsets[self.mask[(start + offsets) % self.modulo]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Which rows and columns one pass reads, and in which order.

    Columns in `ids` are read as they are (from CSV as text), columns in `numbers` as numbers where the source
    has a choice (CSV); a column in both is text. Those in `raw` are kept as they are, too, where a file has
    them; None: no such columns. `order`, (seed, epoch), shuffles files and row groups; None is the order of
    the files. Of the kept `rows` (None: all), the worker number `worker` of `workers` reads its share.
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
        """All columns, each once."""
        return list(dict.fromkeys([*self.ids, *self.numbers]))

    def raw_of(self, names: Iterable[str]) -> list[str]:
        """Return which of the columns of a file are kept as they are."""
        there = set(names)
        return [name for name in self.raw or () if name in there]

    def kept_before(self, index: int) -> int:
        """Return how many rows with an index below `index` are kept."""
        return index if self.rows is None else int(self.rows.before(index))

    def kept(self, start: int, count: int) -> npt.NDArray[np.int64]:
        """Return which of rows start..start+count are kept, as offsets from `start`."""
        return np.arange(count, dtype=np.int64) if self.rows is None else self.rows.select(start, count)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the rows of a chunk came from: the name of the file (or object in memory), and row numbers.

    `rows` is int64[n], counted from 0 without header, comments and blank lines.
    """

    file: str
    rows: npt.NDArray[np.int64]

    def at(self, row: int, column: str) -> str:
        """Return the place of a value for an error message; rows count from 1 there."""
        return f"{self.file}, row {int(self.rows[row]) + 1}, column {column!r}"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive rows of a scan: the columns it names and, if it asks for some, those in `raw`.

    `Source.scan` from `cursor` yields this piece again first.
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
        files: how many files there are; 1 in memory.
    """

    label: str
    names: Sequence[str]
    files: int

    def columns(self) -> Iterator[tuple[str, pa.Schema]]:
        """Yield the name of each file and its columns; those of CSV are text."""

    def scan(self, scan: Scan, cursor: Cursor | None) -> Iterator[Piece]:
        """Yield pieces from the start or from a piece's cursor; always the same rows in the same order."""

    def num_rows(self, scan: Scan) -> int | None:
        """Return how many rows a whole scan yields, or None if only reading would tell."""

    def progress(self, scan: Scan, cursor: Cursor) -> float | None:
        """Return the share of the pass before `cursor`, 0..1, or None when it is not known."""


@runtime_checkable
class FileSource(Source, Protocol):
    """A source of files, which can be divided by their bytes.

    Attributes:
        inputs: the files.
    """

    inputs: Sequence[File]

    def single(self, file: int) -> FileSource:
        """Return the source of one of the files."""

    def rows_by_file(self) -> Sequence[int | None]:
        """Return how many rows each file has, None if only reading would tell."""

    def offset(self, cursor: Cursor) -> int:
        """Return how many bytes of a single file are before a cursor; of compressed text, decompressed."""

    def cursors(self, start: Cursor | None) -> Iterator[Cursor] | None:
        """Return the cursors of a single file's pieces without reading columns, from the start or a cursor.

        None if that takes as long as reading the rows.
        """


def check_columns(needed: Iterable[str], columns: Sequence[str], file: str) -> None:
    """Raise `DataError` for the first needed column that a file lacks, or has more than once.

    The error for one that it lacks names the nearest one it has.
    """
    there = Counter(columns)
    for column in needed:
        if there[column] > 1:
            raise DataError(
                f"{there[column]} columns are named {column!r}",
                where=file,
                why="it is unclear which of them is meant",
                fix="give each column a name of its own, or leave these out",
            )
        if column not in there:
            shown = ", ".join(columns[:12]) + (", ..." if len(columns) > 12 else "")
            raise DataError(
                f"column {column!r} is missing",
                where=file,
                why="the schema needs it",
                fix=f"{did_you_mean(column, columns, cutoff=0.5)}name one of the columns: {shown}",
            )


def permutation(count: int, *seeds: int) -> npt.NDArray[np.int64]:
    """Return a permutation of 0..count-1 that depends only on `seeds`.

    It is equal on every machine and with every NumPy version: each index is hashed with the seeds (a
    bijection, so no two keys are equal) and the keys are sorted. The order of the seeds matters.
    """
    key = 0
    for seed in seeds:
        key = int(hash_ids(np.array([seed % 2**64], np.uint64), key)[0])
    return np.argsort(hash_ids(np.arange(count, dtype=np.int64), key)).astype(np.int64, copy=False)
