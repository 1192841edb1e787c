"""Requests to all tables of a group at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from satrap.errors import StoreError
from satrap.runtime.arguments import checked
from satrap.store.arrays import (
    Floats,
    Found,
    Ids,
    Offsets,
    Slots,
    check_out,
    check_rows,
    check_splits,
    not_finite,
    plain,
)
from satrap.store.group import GroupStore
from satrap.store.kernels.rows import all_finite


@checked()
class GroupRequests:
    """Checks and serves requests to table groups, one after another; thread-safe.

    Attributes:
        groups: the table groups; tables of a group share one slab of rows. Empty once the store is closed.
    """

    def __init__(self, groups: Sequence[GroupStore]) -> None:
        self.groups = tuple(groups)
        self._lock = threading.Condition()
        self._refused = 0  # updates
        self._closed = False

    def lookup_group(self, group: int, ids: Ids, splits: Offsets, out: Floats | None = None) -> Floats:
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
        out: Floats | None = None,
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
        out = check_out(out, len(ids), g.dim)
        with self._lock:
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
        out: Floats | None = None,
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
        out = check_out(out, len(ids), g.dim)
        with self._lock:
            warm = warm and len(g.backend.parts) > 1
            if warm:
                g.wait_for_readers(0, len(ids), self._lock)
            return out, g.peek(ids, splits, out, slots, warm=warm)

    def update_group(
        self,
        group: int,
        ids: Ids,
        splits: Offsets,
        gradients: Floats,
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
        gradients = check_rows(gradients, len(ids), g.dim, "gradients")
        with self._lock:
            if not checked:
                self._refuse_nonfinite(g, gradients)
            g.wait_for_readers(len(ids), 0, self._lock)
            g.update(ids, splits, gradients, lr_scale, slots)

    def check_gradients(self, groups: Sequence[int], gradients: Sequence[Floats]) -> None:
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
                g = self._group(group)
                self._refuse_nonfinite(g, check_rows(rows, len(rows), g.dim, "gradients"))

    def _refuse_nonfinite(self, g: GroupStore, gradients: Floats) -> None:
        if not all_finite(gradients.reshape(-1).view(np.uint32)):
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


def _check_slots(slots: Slots | None, group: GroupStore, ids: Ids) -> None:
    if slots is not None and (slots.group != group.index or len(slots.numbers) != len(ids)):
        raise StoreError(
            "the slots belong to another request",
            fix="pass the slots that lookup_slots returned for these ids",
        )
