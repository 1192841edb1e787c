"""Applies the admission of a table group at run time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.retention import Admission
from satrap.store import hashes
from satrap.store.arrays import Found, Ids, Offsets
from satrap.store.kernels import sketch

LINES = 4
"""Independent counts per id; the smallest one is used."""


class AdmissionGate:
    """Decides which new ids of one table group get a row; `seed` is the seed of the coin tosses.

    Attributes:
        requests: number of lookup requests so far; the coin tosses are a function of it.
        bytes: memory used by the counts.
    """

    def __init__(self, admission: Admission, seed: int, tables: tuple[str, ...]) -> None:
        self.admission = admission
        self.requests = 0
        self._salts = np.array([hashes.index_salt(name) for name in tables], np.uint64)
        self._coin = int(hashes.row_seed(seed, "\0admission"))
        self.clear()

    def clear(self) -> None:
        """Forget all counts."""
        width = self.admission.memory // LINES if self.admission.min_count > 1 else 1
        self._cells = np.zeros((LINES, width), np.uint8)
        self._counted = 0

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state as arrays, for a snapshot."""
        return {"counts": np.array([self.requests, self._counted], np.int64), "cells": self._cells.copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `state`."""
        self.requests, self._counted = (int(count) for count in state["counts"])
        self._cells = np.array(state["cells"], np.uint8)

    @property
    def bytes(self) -> int:
        """Bytes used by the counts."""
        return self._cells.nbytes if self.admission.min_count > 1 else 0

    def admit(self, ids: Ids, splits: Offsets, missing: Offsets) -> Found:
        """Count one use of each missing id; return which of them get a row, bool[m].

        Ids are unique in each table; `missing` are the positions, int64[m] ascending, of ids without a row.
        """
        admitted = np.empty(len(missing), np.bool_)
        coin = np.uint64((self._coin + self.requests * 0x9E3779B97F4A7C15) % 2**64)
        if self.admission.min_count > 1:
            self._counted += len(missing)
            if self._counted > self._cells.shape[1]:
                sketch.halve(self._cells)
                self._counted = self._counted // 2
        counts = sketch.Sketch(self._salts, self._cells, self.admission.min_count, self.admission.probability)
        sketch.admit(counts, ids, splits, missing, coin, admitted)
        return admitted


class ClosedAdmissionGate(AdmissionGate):
    """Admits no id: frozen tables only have the rows that were loaded."""

    def admit(self, ids: Ids, splits: Offsets, missing: Offsets) -> Found:
        """Return False for each missing id, bool[m]."""
        return np.zeros(len(missing), np.bool_)
