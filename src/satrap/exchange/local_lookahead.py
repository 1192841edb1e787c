"""The exchange of one process, with lookups that are issued early and still see all updates."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from satrap.exchange.local import LocalExchange
from satrap.exchange.lookup import Array, Lookup, LookupRequest
from satrap.exchange.pending_rows import Mask, PendingRows
from satrap.store import Shard
from satrap.store.shard import check_lookups


@dataclass(slots=True)
class _DeferredLookup:
    """A lookup that waits for its turn: its rows when issued, and masks of the rows that will change."""

    lookup: Lookup[Array]
    rows: list[Array]
    changing: list[Mask]


class LocalLookahead(LocalExchange):
    """A `LocalExchange` whose lookups see all earlier updates, however early they are issued.

    Rows are read when the lookup is issued, concurrently with the caller's own work. Rows that earlier
    waiting lookups also request are read again in the lookup's turn, after the updates of those lookups. Then
    the rows are complete, and equal to the rows of `sync` to the bit.

    Every lookup that creates is followed by one update, in the same order.

    Args:
        shard: the store; it evicts nothing, and admits every id.
    """

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard)
        self._early: deque[_DeferredLookup] = deque()
        self._awaited = PendingRows(shard)

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> Lookup[Array]:
        """See `Exchange.lookup`."""
        if not create:
            return super().lookup(requests, create=False)
        lookup = Lookup[Array](requests, exchange=self)
        future = self._thread.submit(self._look_ahead, lookup)
        future.add_done_callback(self.telemetry.meter.issue("lookup"))
        future.add_done_callback(lookup.fail_from)
        return lookup

    def _look_ahead(self, lookup: Lookup[Array]) -> None:
        check_lookups(self.shard, ((r.group, r.ids, r.splits) for r in lookup.requests))
        pairs = [self.shard.lookup_slots(r.group, r.ids, r.splits, use=False) for r in lookup.requests]
        lookup.places = [slots for _, slots in pairs]
        # Rows of waiting lookups are stale here: their updates come before this lookup's turn.
        changing = [self._awaited.among(slots) for slots in lookup.places]
        for slots in lookup.places:
            self._awaited.add(slots)
        self._early.append(_DeferredLookup(lookup, [rows for rows, _ in pairs], changing))
        if len(self._early) == 1:
            self._hand_out()

    def _hand_out(self) -> None:
        """Complete the lookup whose turn it is: read again the rows that have changed since."""
        if self._early:
            early = self._early[0]
            of_groups = zip(
                early.lookup.requests, early.lookup.places, early.rows, early.changing, strict=True
            )
            for request, slots, rows, changing in of_groups:
                at = np.flatnonzero(changing)
                splits = np.searchsorted(at, request.splits).astype(np.int64)
                changed = replace(slots, numbers=slots.numbers[at])
                rows[at], _ = self.shard.peek_group(request.group, request.ids[at], splits, slots=changed)
            self.telemetry.meter.looked_up(early.lookup, 0, (self._applied, self._applied))
            early.lookup.rows.set_result(early.rows)

    def _issue_update(
        self, lookup: Lookup[Any], gradients: Sequence[Array], lr_scale: float, *, checked: bool
    ) -> None:
        super()._issue_update(lookup, gradients, lr_scale, checked=checked)
        assert self._last_update is not None  # if it is rejected, waiting lookups raise its error
        self._last_update.add_done_callback(self._tell_all)

    def _tell_all(self, update: Future[None]) -> None:
        for early in self._early:
            if not early.lookup.rows.done():
                early.lookup.fail_from(update)

    def _updated(self, lookup: Lookup[Any]) -> None:
        if self._early:
            for slots in self._early.popleft().lookup.places:
                self._awaited.remove(slots)
            self._hand_out()
