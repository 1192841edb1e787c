"""The protocol of all sources of rows, and which rows one pass reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.data.origin import Origin
from satrap.errors import ConfigError

Cursor = list[int]
"""Where a scan stands, as plain numbers whose meaning is the source's own."""


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

    Args:
        ids: columns read as they are (CSV: as text).
        numbers: columns read as numbers where the source has a choice (CSV); a column in both is text.
        raw: also keep all original columns.
        order: numbers (seed, epoch) that shuffle files and row groups, or None for file order.
        rows: rows kept, or None for all.
        worker: index of this worker, 0..workers-1.
        workers: how many workers share the rows.
    """

    ids: Sequence[str]
    numbers: Sequence[str]
    raw: bool = False
    order: tuple[int, int] | None = None
    rows: RowSplit | None = None
    worker: int = 0
    workers: int = 1

    @property
    def names(self) -> list[str]:
        """All columns, each once."""
        return list(dict.fromkeys([*self.ids, *self.numbers]))


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive rows of a scan.

    Args:
        table: the columns of the scan.
        origin: where the rows came from.
        cursor: `Source.scan` from here yields this piece again first.
        raw: all original columns, when asked for.
    """

    table: pa.Table
    origin: Origin
    cursor: Cursor
    raw: pa.Table | None = None


class Source(Protocol):
    """A list of files, or an object in memory, that can be scanned any number of times."""

    @property
    def label(self) -> str:
        """Short name for messages."""

    @property
    def names(self) -> Sequence[str]:
        """Column names (of the first file)."""

    @property
    def files(self) -> int:
        """How many files there are; 1 in memory."""

    def scan(self, scan: Scan, cursor: Cursor | None) -> Iterator[Piece]:
        """Yield pieces from the start or from a piece's cursor; always the same rows in the same order."""

    def num_rows(self, scan: Scan) -> int | None:
        """Return how many rows a whole scan yields, or None if only reading would tell."""

    def progress(self, scan: Scan, cursor: Cursor) -> float | None:
        """Return the share of the pass before `cursor`, 0..1, or None when it is not known."""
