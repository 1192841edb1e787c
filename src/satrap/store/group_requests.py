"""Requests to all tables of a group at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from satrap.errors import StoreError
from satrap.runtime.arguments import checked
from satrap.store.arrays import (
    FeatureIds,
    Floats,
    Found,
    Ids,
    Offsets,
    Slots,
    check_rows,
    check_splits,
    not_finite,
    plain,
)
from satrap.store.backend import Block
from satrap.store.group import GroupStore
from satrap.store.kernels.rows import all_finite


@checked()
class GroupRequests:
    """Checks and serves requests to table groups, one after another; thread-safe.

    Rows and gradients are arrays, or tensors on the device that holds the rows; a device also takes arrays.

    Attributes:
        groups: the table groups; tables of a group share one slab of rows. Empty once the store is closed.
    """

    def __init__(self, groups: Sequence[GroupStore]) -> None:
        self.groups = tuple(groups)
        self._lock = threading.Condition()
        self._refused = 0  # updates
        self._closed = False

    def lookup_group(self, group: int, ids: Ids, splits: Offsets, out: Block | None = None) -> Floats:
        """Return the rows float32[n, dim] of ids of all tables of a group; new ids are created.

        Args:
            group: index of the group.
            ids: uint64[n], unique in each table.
            splits: int64[tables + 1]; `ids[splits[t]:splits[t + 1]]` belong to `groups[group].tables[t]`.
            out: float32[n, dim] to write to; rows may have any stride.

        Raises:
            StoreError: wrong dtype or shape, unknown group, or no room for a new row.
        """
        return self.lookup_slots(group, ids, splits, out)[0]

    def lookup_slots(
        self,
        group: int,
        ids: Ids,
        splits: Offsets,
        out: Block | None = None,
        *,
        use: bool = True,
    ) -> tuple[Floats, Slots]:
        """Do what `lookup_group` does; also return slots, so that `update_group` need not find the ids again.

        Args:
            group, ids, splits, out: as in `lookup_group`.
            use: False: a prefetch, which is not counted. Not supported if rows are evicted.

        Raises:
            StoreError: wrong dtype, shape or value, unknown group, or no room for a new row.
        """
        g, ids, splits = self._request(group, ids, splits)
        with self._lock:
            out = g.backend.block(out, len(ids), g.dim)
            g.wait_for_readers(0, len(ids), self._lock)
            return out, g.lookup(ids, splits, out, use=use)

    def fetch_group(self, group: int, ids: Ids, splits: Offsets) -> tuple[Floats, Floats]:
        """Do what `lookup_group` does; return (weights float32[n, dim], optimizer state float32[n, width]).

        Another store that loads them continues exactly; see `Chunk` for the contents of the state. The
        request is not counted, since rows are fetched before their use, and perhaps more than once.

        Raises:
            StoreError: as for `lookup_group`, or an id has no row in memory, which happens only with
                admission or eviction.
        """
        g, ids, splits = self._request(group, ids, splits)
        with self._lock:
            g.wait_for_readers(0, len(ids), self._lock)
            return g.fetch(ids, splits)

    def load_group(self, group: int, ids: Ids, splits: Offsets, weights: Floats, state: Floats) -> None:
        """Insert or overwrite rows with the result of `fetch_group`.

        Args:
            group, ids, splits: as in `lookup_group` (not checked: of a repeated id's rows, one is kept).
            weights: float32[n, dim].
            state: float32[n, width], the optimizer state.

        Raises:
            StoreError: wrong dtype or shape, unknown group, or no room for a new row.
        """
        if lost := self._write(group, ids, splits, weights, state):
            raise StoreError(
                f"no room for {lost} of {len(ids)} rows in one load",
                fix="give the store more memory, or load smaller chunks",
            )

    def _write(self, group: int, ids: Ids, splits: Offsets, weights: Floats, state: Floats) -> int:
        """Do what `load_group` does; return the number of rows that did not fit."""
        g, ids, splits = self._request(group, ids, splits)
        weights = check_rows(weights, len(ids), g.dim, "weights")
        state = check_rows(state, len(ids), g.plan.width, "state")
        with self._lock:
            g.wait_for_readers(len(ids), len(ids), self._lock)
            return g.write(ids, splits, weights, state)

    def peek_group(
        self,
        group: int,
        ids: Ids,
        splits: Offsets,
        out: Block | None = None,
        *,
        slots: Slots | None = None,
        warm: bool = False,
    ) -> tuple[Floats, Found]:
        """Return (rows float32[n, dim], found bool[n]); see `peek`.

        Arguments and errors are as for `lookup_group`; `slots` is as in `update_group`. With `warm`, rows in
        the tier move to memory, evicting others as a lookup does, and the request counts as a use; no row
        changes. Without a tier `warm` has no effect.
        """
        g, ids, splits = self._request(group, ids, splits)
        _check_slots(slots, g, ids)
        with self._lock:
            out = g.backend.block(out, len(ids), g.dim)
            warm = warm and len(g.backend.parts) > 1
            if warm:
                g.wait_for_readers(0, len(ids), self._lock)
            return out, g.peek(ids, splits, out, slots, warm=warm)

    def update_group(
        self,
        group: int,
        ids: Ids,
        splits: Offsets,
        gradients: Block,
        *,
        lr_scale: float = 1.0,
        slots: Slots | None = None,
        checked: bool = False,
    ) -> None:
        """Take one optimizer step per id that has a row.

        Args:
            group: index of the group.
            ids: uint64[n], unique in each table (not checked: a repeated id takes two steps).
            splits: int64[tables + 1], as in `lookup_group`.
            gradients: float32[n, dim].
            lr_scale: factor on the optimizer's lr for this update.
            slots: the slots that `lookup_slots` returned for exactly these ids, so that the rows need not be
                found again. The result is the same however old the slots are.
            checked: the gradients are known to be finite, from `check_gradients` or `sum_features`.

        Raises:
            StoreError: wrong dtype or shape, unknown group, slots of another request, or gradients that are
                NaN or infinite (counted in `Statistics.refused`).
        """
        g, ids, splits = self._request(group, ids, splits)
        _check_slots(slots, g, ids)
        with self._lock:
            gradients = g.backend.gradients(gradients, len(ids), g.dim)
            if not checked:
                self._refuse_nonfinite(g, gradients)
            g.wait_for_readers(len(ids), 0, self._lock)
            g.update(ids, splits, gradients, lr_scale, slots)

    def prepare_batch(self, group: int, ids: Ids, splits: Offsets) -> Any:
        """Bring all ids of a batch to the device of a group's rows, for `look_up_batch`; changes nothing.

        Args:
            group: index of the group, whose rows are on a device.
            ids: uint64[n]; they may repeat.
            splits: int64[tables + 1], as in `lookup_group`.

        Raises:
            StoreError: wrong dtype or shape, or unknown group.
        """
        g, ids, splits = self._request(group, ids, splits)
        return g.batches.prepare(ids, splits)

    def look_up_batch(
        self, group: int, prepared: Any, size: int, features: Sequence[FeatureIds], *, create: bool
    ) -> Any:
        """Find the rows of a batch on a device; return a `satrap.store.gpu.batches.DeviceBatch`.

        Its `rows` are the vectors and rows that the features need. With arrays, the host would remove
        duplicates and pool.

        Args:
            group: index of the group.
            prepared: the ids of the batch, from `prepare_batch`; each can be looked up once.
            size: number of samples.
            features: the parts of the ids, the pooled ones first.
            create: whether new ids get a row, and the request counts as a use.

        Raises:
            StoreError: unknown group. Whether new rows had room shows in the update.
        """
        g = self._group(group)
        with self._lock:
            g.wait_for_readers(0, int(prepared.splits[-1]) if create else _returning(g, prepared), self._lock)
            return g.batches.look_up(prepared, size, features, create=create)

    def check_batch(self, group: int, batch: Any) -> None:
        """Raise the error that `update_batch` would raise for a batch without room, before any update.

        Args:
            group: index of the group.
            batch: from `look_up_batch`.

        Raises:
            StoreError: new rows of the lookup had no room.
        """
        g = self._group(group)
        with self._lock:
            g.wait_for_readers(0, _returning(g, batch), self._lock)
            g.batches.check(batch)

    def update_batch(self, group: int, batch: Any, gradients: Block, *, lr_scale: float = 1.0) -> None:
        """Take one optimizer step per distinct id of a batch that has a row.

        Args:
            group: index of the group.
            batch: from `look_up_batch`.
            gradients: float32[n, dim], finite, of `batch.rows`.
            lr_scale: factor on the optimizer's lr for this update.

        Raises:
            StoreError: wrong dtype or shape, or new rows of the lookup had no room; no row has changed.
        """
        g = self._group(group)
        with self._lock:
            gradients = g.backend.gradients(gradients, len(gradients), g.dim)
            g.wait_for_readers(int(batch.splits[-1]), _returning(g, batch), self._lock)
            g.batches.update(batch, gradients, lr_scale)

    def check_gradients(self, groups: Sequence[int], gradients: Sequence[Block]) -> None:
        """Raise the error that `update_group` would raise for any of these updates, before applying one.

        Args:
            groups: index of each update's group.
            gradients: float32[n, dim] of each update.

        Raises:
            StoreError: wrong dtype or shape, unknown group, or gradients that are NaN or infinite (counted as
                one refused update).
        """
        with self._lock:
            for group, rows in zip(groups, gradients, strict=True):
                g, count = self._group(group), rows.shape[0] if getattr(rows, "ndim", 0) else 0
                self._refuse_nonfinite(g, g.backend.gradients(rows, count, g.dim))

    def _refuse_nonfinite(self, g: GroupStore, gradients: Block) -> None:
        if not finite(gradients):
            self._refused += 1
            raise not_finite(f"{len(gradients)} rows of {', '.join(g.tables)}")

    def _open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    def _group(self, group: int) -> GroupStore:
        self._open()
        if not 0 <= group < len(self.groups):
            raise StoreError(f"group {group} does not exist (number of groups: {len(self.groups)})")
        return self.groups[group]

    def _request(self, group: int, ids: Ids, splits: Offsets) -> tuple[GroupStore, Ids, Offsets]:
        g = self._group(group)
        ids = plain(ids, np.uint64, 1, "ids")
        return g, ids, check_splits(splits, len(g.tables), len(ids))


def finite(block: Block) -> bool:
    """Return whether no number of a block is NaN or infinite; waits for its device."""
    if isinstance(block, np.ndarray):
        return all_finite(block.reshape(-1).view(np.uint32))
    return bool(block.isfinite().all())


def _returning(group: GroupStore, batch: Any) -> int:
    """Return how many rows of a batch may return from slower memory, where others then take their place."""
    return int(batch.splits[-1]) if len(group.backend.parts) > 1 else 0


def _check_slots(slots: Slots | None, group: GroupStore, ids: Ids) -> None:
    if slots is not None and (slots.group != group.index or len(slots.numbers) != len(ids)):
        raise StoreError(
            "the slots belong to another request",
            fix="pass the slots that lookup_slots returned for these ids",
        )
