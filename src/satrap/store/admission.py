"""Which new ids get a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError
from satrap.store import hashes
from satrap.store.kernels import sketch
from satrap.store.types import Found, Ids, Offsets

LINES = 4
"""Independent counts per id; the smallest one is used."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Keeps rare ids from getting rows.

    ```python
    shard = satrap.store.Shard(tables, admission=satrap.store.Admission(min_count=3))
    ```

    A use is a lookup request that names the id. Until an id is admitted, each lookup reads its deterministic
    initial row, and its gradients are counted as dropped. The counts take `memory` bytes, whatever the number
    of ids. A count is never too low, so an id is admitted with its `min_count`-th use at the latest. A count
    is too high by t or more with probability at most t ** -4 (then the id is admitted early). All counts are
    halved each time memory / 4 uses (the width of the sketch) have been counted: ids that stay rare are
    forgotten, and the bound always holds.

    Args:
        min_count: number of the use that creates the row, 1..255; default 1, the first use.
        probability: chance, in (0, 1], that a use (from the `min_count`-th on) creates the row: it takes
            1 / probability uses on average, and no memory. Default 1. The coin is a pure function of
            (seed, table, id, number of the lookup request), whatever the number of shards.
        memory: bytes for the counts of each table group, a power of two, used if min_count > 1; default
            16 MiB.

    Raises:
        ConfigError: a value outside its range.
    """

    min_count: int = 1
    probability: float = 1.0
    memory: int = 1 << 24

    def __post_init__(self) -> None:
        if not 1 <= self.min_count <= 255:
            raise ConfigError(f"admission: min_count must be 1 to 255, got {self.min_count}")
        if not 0 < self.probability <= 1:
            raise ConfigError(f"admission: probability must be in (0, 1], got {self.probability}")
        if self.memory < 64 or self.memory & (self.memory - 1):
            raise ConfigError(f"admission: memory must be a power of two >= 64, got {self.memory}")

    @property
    def open(self) -> bool:
        """True if every id is admitted at once."""
        return self.min_count == 1 and self.probability == 1

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments, the form used in checkpoints."""
        return asdict(self)


class Gate:
    """The admission of one table group in operation; `seed`: of the coins.

    Attributes:
        requests: number of lookup requests so far; the coins are a function of it.
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
        """Take over what `state` returned."""
        self.requests, self._counted = (int(count) for count in state["counts"])
        self._cells = np.array(state["cells"], np.uint8)

    @property
    def bytes(self) -> int:
        """Bytes used by the counts."""
        return self._cells.nbytes if self.admission.min_count > 1 else 0

    def admit(self, ids: Ids, splits: Offsets, missing: Offsets) -> Found:
        """Count one use of each missing id; return which of them get a row, bool[m].

        Ids are distinct inside each table; `missing` are positions int64[m] of ids without a row, ascending.
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


class ClosedGate(Gate):
    """Admits no id: the rows of frozen tables are those that were loaded."""

    def admit(self, ids: Ids, splits: Offsets, missing: Offsets) -> Found:
        """Return False for each missing id, bool[m]."""
        return np.zeros(len(missing), np.bool_)
