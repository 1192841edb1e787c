"""Unique counts and a sample of rows, in constant memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.data.encode.hashing import hash_ids
from satrap.data.formats.columns import concatenated, taken
from satrap.errors import DataError

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
_SPACE = 2.0**64
_ORDER = 0x5EED
"""Salt of the hash that draws rows."""


class UniqueCounter:
    """Counts unique 64-bit hashes: exactly up to `bound`, then with a relative error of `1 / sqrt(bound)`.

    It keeps the `bound` smallest hashes. Hashes are spread evenly, so the largest kept hash gives their
    density: the KMV sketch, Bar-Yossef et al., "Counting Distinct Elements in a Data Stream", RANDOM 2002,
    with the unbiased estimate of Beyer et al., SIGMOD 2007. The order of the values does not matter.

    Args:
        bound: hashes kept, at least 2; default 8192, which is 64 KiB.
    """

    def __init__(self, bound: int = 8192) -> None:
        self.bound = bound
        self._kept: Hashes = np.empty(0, np.uint64)
        self._full = False

    def add(self, hashes: Hashes) -> None:
        """Add hashes, uint64[n]."""
        if self._full:
            hashes = hashes[hashes < self._kept[-1]]
        if not len(hashes):
            return
        smallest = np.union1d(self._kept, hashes)
        self._full = self._full or len(smallest) > self.bound
        self._kept = smallest[: self.bound]

    @property
    def exact(self) -> bool:
        """Whether `count` is exact."""
        return not self._full

    @property
    def count(self) -> int:
        """Number of unique hashes, or an estimate of it."""
        if self.exact:
            return len(self._kept)
        return round((self.bound - 1) / ((float(self._kept[-1]) + 1) / _SPACE))


class RowSample:
    """Keeps up to `most` rows of a stream of tables; the choice depends only on row numbers.

    Row i is kept if a hash of i is small enough. If there are too many rows, the limit is halved, so all rows
    have the same chance.

    Args:
        most: rows kept, at least 1.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._limit = np.uint64(2**64 - 1)
        self._parts: list[pa.Table] = []
        self._hashes: list[Hashes] = []
        self._numbers: list[Numbers] = []
        self._seen = 0

    def add(self, table: pa.Table) -> None:
        """Add the next rows."""
        numbers = np.arange(self._seen, self._seen + table.num_rows)
        self._seen += table.num_rows
        self._keep(table, numbers, hash_ids(numbers, _ORDER))
        while sum(map(len, self._hashes)) > self.most:
            self._limit //= np.uint64(2)
            pieces = list(zip(self._parts, self._numbers, self._hashes, strict=True))
            self._parts, self._numbers, self._hashes = [], [], []
            for part in pieces:
                self._keep(*part)

    def _keep(self, table: pa.Table, numbers: Numbers, hashes: Hashes) -> None:
        small = hashes <= self._limit
        if not small.all():
            table, numbers, hashes = taken(table, np.flatnonzero(small)), numbers[small], hashes[small]
        if len(hashes) or not self._parts:  # keep the columns even without rows
            self._parts.append(table)
            self._numbers.append(numbers)
            self._hashes.append(hashes)

    def numbers(self) -> Numbers:
        """Return the numbers of the kept rows in the stream, int64[n], in order."""
        return np.concatenate(self._numbers)

    def table(self) -> pa.Table:
        """Return the kept rows in order; a column whose parts have no common type is null."""
        columns: dict[str, pa.ChunkedArray] = {}
        for name in self._parts[0].column_names:
            try:
                columns[name] = concatenated([part.column(name) for part in self._parts])
            except DataError:
                columns[name] = pa.chunked_array([pa.nulls(sum(map(len, self._parts)))])
        return pa.table(columns).combine_chunks()
