"""The exchange of one process, with lookups that are issued early and yet see all updates."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.exchange.local import LocalExchange
from satrap.exchange.lookup import Array, Lookup, Request
from satrap.store import Shard
from satrap.store.shard import check_lookups

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Early:
    """A lookup that waits for its turn: the rows as they were, and which of them have changed since."""

    lookup: Lookup[Array]
    rows: list[Array]
    changed: list[Mask]


class LocalLookahead(LocalExchange):
    """A `LocalExchange` for which the time of a lookup does not matter: it sees the updates of all before it.

    Rows are read when the lookup is issued, beside the caller's own work. Rows that an update changes
    afterwards are read again when the lookup's turn comes, that is after the updates of all lookups before
    it. Then its rows are there, and are those of `sync` to the bit.

    Every lookup that creates is followed by one update, in the same order.

    Args:
        shard: the store; it evicts nothing, and admits every id.
    """

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard)
        self._early: deque[_Early] = deque()
        self._stepped: list[Mask] = [np.zeros(0, np.bool_) for _ in shard.groups]

    def lookup(
        self, requests: Sequence[Request], *, create: bool, known: Sequence[Array] | None = None
    ) -> Lookup[Array]:
        """See `Exchange.lookup`; `known` is not used, since every lookup sees all updates."""
        if not create:
            return super().lookup(requests, create=False)
        lookup = Lookup[Array](requests, exchange=self)
        future = self._thread.submit(self._look_ahead, lookup)
        future.add_done_callback(self.telemetry.meter.issue("lookup"))
        future.add_done_callback(lookup.told)
        return lookup

    def _look_ahead(self, lookup: Lookup[Array]) -> None:
        check_lookups(self.shard, ((r.group, r.ids, r.splits) for r in lookup.requests))
        found = [self.shard.lookup_slots(r.group, r.ids, r.splits, use=False) for r in lookup.requests]
        lookup.places = [slots for _, slots in found]
        unchanged = [np.zeros(len(r.ids), np.bool_) for r in lookup.requests]
        self._early.append(_Early(lookup, [rows for rows, _ in found], unchanged))
        if len(self._early) == 1:
            self._hand_out()

    def _hand_out(self) -> None:
        """Complete the lookup whose turn it is."""
        if self._early:
            early = self._early[0]
            for request, rows, changed in zip(early.lookup.requests, early.rows, early.changed, strict=True):
                at = np.flatnonzero(changed)
                splits = np.searchsorted(at, request.splits).astype(np.int64)
                rows[at], _ = self.shard.peek_group(request.group, request.ids[at], splits)
            self.telemetry.meter.looked_up(early.lookup, 0, (self._applied, self._applied))
            early.lookup.rows.set_result(early.rows)

    def update(
        self,
        lookup: Lookup[Any] | None,
        gradients: Sequence[Array],
        *,
        lr_scale: float,
        finite: bool = False,
    ) -> None:
        """See `Exchange.update`. If one is refused, lookups that wait for their turn raise its error."""
        super().update(lookup, gradients, lr_scale=lr_scale, finite=finite)
        assert self._last_update is not None
        self._last_update.add_done_callback(self._tell_all)

    def _tell_all(self, update: Future[None]) -> None:
        for early in self._early:
            if not early.lookup.rows.done():
                early.lookup.told(update)

    def _updated(self, lookup: Lookup[Any]) -> None:
        if self._early:
            self._early.popleft()
            self._note(lookup)
            self._hand_out()

    def _note(self, lookup: Lookup[Any]) -> None:
        """Note which rows of the lookups that wait have just changed."""
        for request, slots in zip(lookup.requests, lookup.places, strict=True):
            stepped = self._stepped_of(request.group)
            stepped[slots.numbers] = True
            for early in self._early:
                for own, its, changed in zip(
                    early.lookup.requests, early.lookup.places, early.changed, strict=True
                ):
                    if own.group == request.group:
                        changed |= stepped[its.numbers]
            stepped[slots.numbers] = False

    def _stepped_of(self, group: int) -> Mask:
        """Return a mask of all slots of a group, all False."""
        slots = self.shard.groups[group].directory.slots
        if len(self._stepped[group]) < slots:
            self._stepped[group] = np.zeros(slots * 5 // 4, np.bool_)
        return self._stepped[group]
