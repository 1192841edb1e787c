"""Lookups over shard servers that are issued early and still see all updates."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from satrap.exchange import kernels
from satrap.exchange.lookup import Array, Lookup, LookupRequest
from satrap.exchange.protocol import Exchange
from satrap.exchange.serial import Serial
from satrap.exchange.servers.client.exchange import Fetched, ServersExchange
from satrap.exchange.servers.client.row_mirror import RowMirror
from satrap.exchange.split import ShardPart
from satrap.exchange.telemetry import Rounding
from satrap.exchange.wire.formats import CODES
from satrap.exchange.wire.rows import GradientEncoder, from_wire, row_section


@dataclass(slots=True)
class _PrefetchedLookup:
    """A lookup that waits for its turn, its fetch, and the shadow's update counts when it was issued."""

    lookup: Lookup[Array]
    wanted: Sequence[LookupRequest]
    fetched: Future[Fetched]
    updates: Sequence[int]
    here: bool = False


class ServersLookahead(Exchange):
    """A `ServersExchange` of a single worker, whose early lookups see all updates before their turn.

    The rows of waiting lookups are also kept here, in a `RowMirror`, with their optimizer state. Every update
    changes them here as it changes them at the shards, to the bit, so a lookup does not wait for the round
    trip to the shards. Rows that are here already are not sent again.

    Args:
        shards: the exchange with the shards, in mode hybrid: they apply updates as they arrive.
    """

    collective = False

    def __init__(self, shards: ServersExchange) -> None:
        self._shards, self._shadow = shards, RowMirror(shards.tables, shards.seed)
        self.groups, self.moves = shards.groups, shards.moves
        self.telemetry, self.rows = shards.telemetry, shards.rows
        self._thread = Serial("satrap-lookahead")
        self._early: deque[_PrefetchedLookup] = deque()
        self._error: BaseException | None = None
        self._forward = CODES[shards.wire.forward]
        self._gradients = GradientEncoder(self.groups, CODES[shards.wire.backward], 1, Rounding())

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> Lookup[Array]:
        """See `Exchange.lookup`."""
        if not create:
            self._thread.submit(lambda: None).result()  # wait for the updates that were issued before
            return self._shards.lookup(requests, create=False)
        lookup = Lookup[Array](list(requests), exchange=self)
        self._do(lookup, partial(self._look_up, lookup))
        return lookup

    def _do(self, lookup: Lookup[Array] | None, work: Callable[[], None]) -> None:
        """Run something in the thread; after an error nothing is run any more."""

        def run() -> None:
            self._raise_failed()
            work()

        def done(future: Future[None]) -> None:
            if (error := future.exception()) is not None:
                self._error = self._error or error
                for waits in (lookup, *(early.lookup for early in self._early)):
                    if waits is not None and not waits.rows.done():
                        waits.rows.set_exception(error)

        self._thread.submit(run).add_done_callback(done)

    def _look_up(self, lookup: Lookup[Array]) -> None:
        if not self._early:
            self._shadow.clear()  # other clients may have changed rows since the last lookup
        elif self._shadow.full:
            self._shadow.keep([request for early in self._early for request in early.lookup.requests])
        lookup.requests = [self._shards.splitter.checked(request) for request in lookup.requests]
        missing = [self._shadow.missing(request) for request in lookup.requests]
        fetched = self._shards.fetch(missing, [self._shadow.width(request) for request in missing])
        updates = [self._shadow.updates(request) for request in missing]
        early = _PrefetchedLookup(lookup, missing, fetched, updates)
        self._early.append(early)
        fetched.add_done_callback(lambda _: self._do(lookup, partial(self._arrived, early)))

    def _arrived(self, early: _PrefetchedLookup) -> None:
        # The shadow continues the shards' update counters, on which the rounding of 16-bit weights depends.
        arrays, updates = early.fetched.result()
        here_and_there = zip(early.updates, map(max, zip(*updates, strict=True)), strict=True)
        for request, rows, (here, there) in zip(early.wanted, arrays, here_and_there, strict=True):
            self._shadow.add(request, rows, there - here)
        early.here = True
        if self._early and self._early[0] is early:
            self._hand_out()

    def _hand_out(self) -> None:
        """Complete the lookup whose turn it is, if its rows are here."""
        if self._early and self._early[0].here:
            lookup = self._early[0].lookup
            lookup.rows.set_result([self._as_sent(self._shadow.rows(r)) for r in lookup.requests])

    def _as_sent(self, rows: Array) -> Array:
        """Return rows as they would arrive from a shard."""
        if self._forward != kernels.FLOAT32:
            from_wire(row_section(0, rows, self._forward), rows)
        return rows

    def prefetch(self, requests: Sequence[LookupRequest]) -> None:
        """See `Exchange.prefetch`."""
        self._shards.prefetch(requests)

    def _raise_failed(self) -> None:
        if self._error is not None:
            raise self._error

    def _issue_update(
        self, lookup: Lookup[Any], gradients: Sequence[Array], lr_scale: float, *, checked: bool
    ) -> None:
        self._do(None, partial(self._update, lookup, list(gradients), lr_scale))

    def _update(self, lookup: Lookup[Any], gradients: Sequence[Array], lr_scale: float) -> None:
        parts = [[ShardPart(request.ids, request.splits, None, None)] for request in lookup.requests]
        [sections] = self._gradients.sections(lookup.requests, parts, gradients, 1)
        for s in sections:  # as they arrive at a shard
            assert s.ids is not None
            rows = from_wire(s, np.empty((s.count, s.dim), np.float32))
            self._shadow.update(LookupRequest(s.group, s.ids, s.splits), rows, lr_scale)
        self._early.popleft()
        self._hand_out()  # before the update is sent: the next step waits only for its rows
        sent = Lookup[Array](lookup.requests)
        sent.missed = (0, 0)  # the lookup saw all updates
        self._shards.apply(sent, gradients, lr_scale=lr_scale)

    def flush(self) -> None:
        """See `Exchange.flush`."""
        self._thread.submit(lambda: None).result()
        self._raise_failed()
        self._shards.flush()

    def close(self) -> None:
        """See `Exchange.close`. Closing twice is fine."""
        self._thread.submit(lambda: None).result()
        self._shards.close()  # pending fetches fail here, and their callbacks use the thread
        self._thread.shutdown(wait=True)
        self._shadow.close()
