"""Rows of whole batches that return to a device from slower memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from satrap.store.arrays import Ids, Inverse, Offsets, per_table
from satrap.store.backend import Away
from satrap.store.gpu.backend import DeviceRows
from satrap.store.gpu.directory import on_device
from satrap.store.gpu.order import Distinct
from satrap.store.tier.tiered import Tiered

MORE = 64
"""One in this many rows of the device leaves with the rows that must leave."""


@dataclass(frozen=True, slots=True)
class AbsentRuns:
    """The distinct ids of a batch that are not on the device; n of them.

    Attributes:
        slots: int32[capacity], of all distinct ids, before any row moves; valid until the next request.
        runs: int32[n], their numbers.
        ids, splits: uint64[n] by table, int64[tables + 1].
        away: the ones in slower memory.
    """

    slots: Tensor
    runs: Inverse
    ids: Ids
    splits: Offsets
    away: Away

    @property
    def nowhere(self) -> Offsets:
        """Positions in `ids` of the ones without a row anywhere."""
        return np.setdiff1d(np.arange(len(self.ids)), self.away.positions, assume_unique=True)


class ReturningRows:
    """Finds and moves the rows of batches, which wait for the device."""

    def __init__(self, rows: DeviceRows, slower: Tiered) -> None:
        self._rows, self._slower = rows, slower

    def find(self, distinct: Distinct) -> AbsentRuns:
        """Return where the distinct ids of a batch are; this begins a request that uses them.

        Raises:
            StoreError: slower memory cannot be read, or lacks room for rows that may move there.
        """
        slots, missing, misses = self._rows.search(distinct, use=True)
        runs = missing[: int(misses)].cpu().numpy()
        ids, order, splits = self._rows.directory.named(distinct, runs)
        away = self._slower.cold.fetch(ids, splits, np.arange(len(ids)))
        self._slower.cold.reserve(3 * len(ids))  # an id may evict two rows
        return AbsentRuns(slots, runs[order], ids, splits, away)

    def bring(self, distinct: Distinct, found: AbsentRuns, new: Offsets) -> tuple[Tensor, int]:
        """Move the rows that are away to the device, and create others.

        Args:
            distinct: the distinct ids of the batch.
            found: from `find`.
            new: positions in `found.ids` that get a row.

        Returns:
            The slots of all distinct ids, int32[capacity]; how many of these rows found no place.
        """
        chosen = np.union1d(new, found.away.positions)
        slots = self._insert(distinct, found.runs[chosen])
        at = on_device(found.runs, self._rows.device).long()
        here = slots[at].cpu().numpy()
        lost = chosen[here[chosen] < 0]
        if len(lost):
            self._slower.cold.shift("refused", -per_table(lost, found.splits))
            self._make_way(slots, len(lost))
            self._rows.index.find(distinct, use=False)
            slots = self._insert(distinct, found.runs[lost])
            here = slots[at].cpu().numpy()
        positions = found.away.positions
        placed = positions[here[positions] >= 0]
        self._slower.bring(found.ids, found.splits, placed, here, found.away)
        return slots, int((here[chosen] < 0).sum())

    def _insert(self, distinct: Distinct, runs: Inverse) -> Tensor:
        queue, count = torch.zeros_like(distinct.inverse), torch.zeros_like(distinct.runs)
        queue[: len(runs)] = on_device(np.sort(runs), self._rows.device)
        return self._rows.insert(distinct, queue, count.fill_(len(runs))).clone()

    def _make_way(self, slots: Tensor, rows: int) -> None:
        """Move rows that a batch does not use to slower memory.

        An id finds no place if its 16 entries have rows of the batch, although other rows could leave.

        Args:
            slots: int32[capacity], the slots of the batch.
            rows: how many of its rows found no place. More leave, so that this happens rarely.
        """
        victims = self._rows.index.least_used(rows + self._rows.directory.limit // MORE, slots)
        self._slower.cold.reserve(len(victims.ids))
        for t in np.unique(victims.tables).tolist():
            of_table = victims.tables == t
            self._rows.discard(t, victims.ids[of_table], victims.slots[of_table])
        leaving = np.bincount(victims.tables, minlength=len(self._rows.kind.tables))
        self._slower.cold.shift("evicted", leaving)  # the index counts no eviction of these
