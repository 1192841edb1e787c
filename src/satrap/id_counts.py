"""Counts of the ids of a column among the training rows, from which features are made."""

from __future__ import annotations

import base64
import hashlib
import zlib
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

Doubles = npt.NDArray[np.float64]

MOST_IDS = 1_000_000
"""Most ids of one feature's counts, so that they fit into memory, messages and checkpoints."""
MOST_FOLDS = 20
"""Most folds of the training rows."""
LEAST_MEAN = 1e-6
"""Least distance of the mean of all rows from 0 and 1, so that log odds are finite."""
_MOST_BYTES = MOST_IDS * (8 + 2 * 4 * MOST_FOLDS) + 4096


class IdCounts:
    """How many training rows have an id, by fold, and how many of them have the label 1.

    Args:
        ids: uint64[n], ascending, 1 to `MOST_IDS` of them.
        rows: uint32[n, folds].
        ones: uint32[n, folds]; None: no label was counted.
        folds_by: digest of the columns that decide the folds, see `FoldColumns.digest`; 0: unknown.

    Raises:
        ValueError: arrays of other types or shapes.
    """

    def __init__(self, ids: Any, rows: Any, ones: Any = None, folds_by: int = 0) -> None:
        self.ids, self.rows, self.ones, self.folds_by = ids, rows, ones, folds_by
        tables = [rows] if ones is None else [rows, ones]
        if (
            ids.dtype != np.uint64
            or ids.ndim != 1
            or not 1 <= len(ids) <= MOST_IDS
            or (ids[1:] <= ids[:-1]).any()
        ):
            raise ValueError(f"the ids of counts are not ascending uint64, 1 to {MOST_IDS}")
        folds = rows.shape[-1] if rows.ndim == 2 else 0
        wrong = [t for t in tables if t.dtype != np.uint32 or t.shape != (len(ids), folds)]
        if wrong or not 1 <= folds <= MOST_FOLDS or (ones is not None and (ones > rows).any()):
            raise ValueError("counts are not uint32 by id and fold")

    @property
    def folds(self) -> int:
        """Number of folds of the training rows."""
        return int(self.rows.shape[1])

    def counts(self, ids: npt.NDArray[np.uint64]) -> Doubles:
        """Return the training rows of ids, float64[n]; 0 for an unknown id."""
        totals, places = self._totals[0], self._places(ids)
        return np.where(places < 0, 0.0, totals[places])

    def log_odds(
        self, ids: npt.NDArray[np.uint64], smoothing: float, folds: npt.NDArray[np.int64] | None = None
    ) -> Doubles:
        """Return the log odds of the label's mean among the training rows of ids, float64[n].

        The mean of an id includes `smoothing` rows with the mean of all training rows.

        Args:
            ids: uint64[n].
            smoothing: number of these rows, > 0.
            folds: int64[n], for training rows: the fold to leave out, which holds the row itself.
        """
        assert self.ones is not None
        rows, ones = self._totals
        mean, places = np.clip(ones.sum() / max(rows.sum(), 1), LEAST_MEAN, 1 - LEAST_MEAN), self._places(ids)
        known = places >= 0
        counted, positive = (np.where(known, total[places], 0.0) for total in self._totals)
        if folds is not None:
            counted -= np.where(known, self.rows[places, folds], 0)
            positive -= np.where(known, self.ones[places, folds], 0)
        share = (positive + smoothing * mean) / (counted + smoothing)
        odds: Doubles = np.log(share / (1 - share))
        return odds

    @cached_property
    def _totals(self) -> tuple[Doubles, Doubles]:
        """Rows and ones of all folds, with a last entry for unknown ids."""
        ones = np.zeros_like(self.rows) if self.ones is None else self.ones
        rows_of_id, ones_of_id = (table.sum(axis=1, dtype=np.float64) for table in (self.rows, ones))
        return rows_of_id, ones_of_id

    def _places(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the index of each id, -1 for an unknown one."""
        places = np.searchsorted(self.ids, ids).clip(max=len(self.ids) - 1)
        return np.where(self.ids[places] == ids, places, -1)

    def without(self, id_: int) -> IdCounts:
        """Return the counts without an id. If it is the only one, its rows count for the id 1."""
        keep = self.ids != np.uint64(id_)
        if not keep.any():
            return IdCounts(np.ones(1, np.uint64), self.rows, self.ones, self.folds_by)
        ones = None if self.ones is None else self.ones[keep]
        return IdCounts(self.ids[keep], self.rows[keep], ones, self.folds_by)

    def to_bytes(self) -> bytes:
        """Return the counts as safetensors, as in a checkpoint."""
        ones = {} if self.ones is None else {"ones": self.ones}
        folds_by = {"folds_by": np.array([self.folds_by], np.uint64)}
        return save({"ids": self.ids, "rows": self.rows, **ones, **folds_by})

    @classmethod
    def from_bytes(cls, data: bytes) -> IdCounts:
        """Return the counts of `to_bytes`; raise `ValueError` for other data."""
        try:
            tables = load(data)
        except SafetensorError as error:
            raise ValueError(f"counts are unreadable: {error}") from error
        if not {"ids", "rows"} <= tables.keys():
            raise ValueError("counts lack ids or rows")
        [folds_by] = tables.get("folds_by", np.zeros(1, np.uint64)).astype(np.uint64).ravel()[:1].tolist()
        return cls(tables["ids"], tables["rows"], tables.get("ones"), folds_by)

    @cached_property
    def text(self) -> str:
        """The counts as text, for messages."""
        return base64.b64encode(zlib.compress(self.to_bytes(), 1)).decode()

    @classmethod
    def from_text(cls, text: str) -> IdCounts:
        """Return the counts of a `text`; raise `ValueError` for another text."""
        unpacker = zlib.decompressobj()
        try:
            data = unpacker.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        except zlib.error as error:
            raise ValueError(f"counts are unreadable: {error}") from error
        return cls.from_bytes(data)

    @cached_property
    def digest(self) -> str:
        """Digest of the content."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdCounts) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<counts of {len(self.ids):,} ids, {self.digest}>"
