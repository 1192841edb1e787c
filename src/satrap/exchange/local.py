"""The exchange of one process: it holds the store, and one background thread serves it in order."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from satrap.errors import ConfigError
from satrap.exchange.lookup import Array, BatchRequest, Lookup, LookupRequest, answered
from satrap.exchange.protocol import Exchange, Pooling, TableGroup
from satrap.exchange.row_sources import StoreRows
from satrap.exchange.serial import Serial
from satrap.exchange.telemetry import ExchangeStatistics, Telemetry
from satrap.store import BUCKETS, Shard
from satrap.store.arrays import Offsets, per_table
from satrap.store.shard import check_lookups
from satrap.store.statistics import merged


class LocalExchange(Exchange):
    """Lookups and updates on a `Shard` of this process, run by one thread in the order issued.

    The store's kernels release the interpreter lock, so lookups ahead and updates behind overlap with the
    caller's own work (`hybrid`); a caller that waits for each lookup trains `sync`.

    Args:
        shard: the store; the exchange owns it from now on and closes it.
        buckets: the buckets whose rows it holds, ascending; default all.
        pools: whether a store on a device also removes duplicate ids and pools rows, see `BatchRequest`.

    Attributes:
        shard, buckets: of the arguments.
        warm: whether a lookup that creates nothing moves rows from the tier to memory, default False: such
            rows are mostly needed once.
    """

    collective = False

    def __init__(self, shard: Shard, *, buckets: Sequence[int] = range(BUCKETS), pools: bool = False) -> None:
        self.shard, self.buckets, self.warm = shard, buckets, False
        self.groups = TableGroup.of(shard)
        if pools:
            names = frozenset(table for group in self.groups for table in group.tables)
            self.pooling = Pooling("device", names, lambda dim: 0.0)
        self._thread = Serial("satrap-exchange")
        self._last_update: Future[None] | None = None
        self._applied = 0
        self.telemetry = LocalTelemetry(shard, self.groups)
        self.rows = StoreRows(shard, lambda work: self._thread.submit(work).result(), self.flush)

    @classmethod
    def of(cls, exchange: Exchange) -> LocalExchange:
        """Return an exchange whose store is in this process; raise `ConfigError` for any other."""
        if not isinstance(exchange, cls):
            raise ConfigError(
                "the rows of the predictor are not in this process",
                fix="load the predictor with Predictor.load(url)",
            )
        return exchange

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> Lookup[Array]:
        """See `Exchange.lookup`."""
        if not requests:
            return answered((), ())
        lookup = Lookup[Array](requests, exchange=self)
        work = partial(self._look_up, lookup) if create else partial(self.peek, requests)
        lookup.rows = self._thread.submit(self.telemetry.meter.timed("lookup", work))
        return lookup

    def _look_up(self, lookup: Lookup[Array]) -> list[Array]:
        if not self.pooling:
            check_lookups(self.shard, ((r.group, r.ids, r.splits) for r in lookup.requests))
        self.telemetry.meter.looked_up(lookup, 0, (self._applied, self._applied))
        pairs = [self._rows_of(request) for request in lookup.requests]
        lookup.places = [places for _, places in pairs]
        return [rows for rows, _ in pairs]

    def _rows_of(self, r: LookupRequest) -> tuple[Array, Any]:
        if isinstance(r, BatchRequest):
            batch = self._batch(r, create=True)
            return batch.rows, batch
        return self.shard.lookup_slots(r.group, r.ids, r.splits)

    def peek(self, requests: Sequence[LookupRequest]) -> list[Array]:
        """Return the rows of a lookup that creates nothing, read in the caller's thread.

        This does not wait for earlier requests. Only one thread may read at a time.
        """
        return [self._peek_one(request) for request in requests]

    def _peek_one(self, request: LookupRequest) -> Array:
        if isinstance(request, BatchRequest):
            batch = self._batch(request)
            self.telemetry.count_unseen(request, batch.unseen())
            pooled: Array = batch.rows
            return pooled
        rows, mask = self.shard.peek_group(request.group, request.ids, request.splits, warm=self.warm)
        unseen = 0 if mask.all() else per_table(np.flatnonzero(~mask), request.splits)
        self.telemetry.count_unseen(request, unseen)
        return rows

    def _batch(self, r: BatchRequest, *, create: bool = False) -> Any:
        prepared = r.prepared.pop() if r.prepared else self.shard.prepare_batch(r.group, r.ids, r.splits)
        return self.shard.look_up_batch(r.group, prepared, r.size, r.features, create=create)

    def prefetch(self, requests: Sequence[LookupRequest]) -> None:
        """See `Exchange.prefetch`."""
        for request in requests:
            if isinstance(request, BatchRequest):
                request.prepared.append(self.shard.prepare_batch(request.group, request.ids, request.splits))
            self.shard.ahead.prefetch(request.group, request.ids, request.splits)

    def _issue_update(
        self, lookup: Lookup[Any], gradients: Sequence[Array], lr_scale: float, *, checked: bool
    ) -> None:
        update = partial(self._update, lookup, gradients, lr_scale, checked, self._last_update)
        self._last_update = self._thread.submit(self.telemetry.meter.timed("push", update, lookup))

    def _update(
        self,
        lookup: Lookup[Any],
        gradients: Sequence[Array],
        lr_scale: float,
        checked: bool,
        before: Future[None] | None,
    ) -> None:
        if before is not None:
            before.result()  # a rejected update stops the next ones, so that its error is not lost
        if not checked:  # all gradients of a step are applied, or none
            self.shard.check_gradients([r.group for r in lookup.requests], gradients)
        slots = lookup.places or [None] * len(lookup.requests)
        for r, places in zip(lookup.requests, slots, strict=True):
            if isinstance(r, BatchRequest) and places is not None:
                self.shard.check_batch(r.group, places)
        for r, gradient, places in zip(lookup.requests, gradients, slots, strict=True):
            if isinstance(r, BatchRequest):
                self.shard.update_batch(r.group, places or self._batch(r), gradient, lr_scale=lr_scale)
            else:
                self.shard.update_group(
                    r.group, r.ids, r.splits, gradient, lr_scale=lr_scale, slots=places, checked=True
                )
        self.telemetry.meter.applied(lookup, 0, (self._applied, self._applied))
        self._applied += 1
        self._updated(lookup)

    def _updated(self, lookup: Lookup[Any]) -> None:
        """Hook for work that is due once the rows of a lookup have changed."""

    def _raise_failed(self) -> None:
        if self._last_update is not None and self._last_update.done():
            self._last_update.result()

    def flush(self) -> None:
        """Wait until everything issued so far has been applied; raise the error of a failed update."""
        self._thread.submit(lambda: None).result()
        self._raise_failed()

    def close(self) -> None:
        """Apply everything issued, then release the store."""
        self._thread.shutdown(wait=True)
        self.shard.close()


class LocalTelemetry(Telemetry):
    """Counters of a store in this process and of its caller, also of lookups that create nothing.

    Args:
        shard: the store.
        groups: its table groups.
    """

    def __init__(self, shard: Shard, groups: Sequence[TableGroup]) -> None:
        super().__init__(self._with_peeks)
        self._shard, self._tables = shard, [group.tables for group in groups]
        self.start_anew()

    def start_anew(self) -> None:
        """Reset the counters of lookups that create nothing."""
        # By group, int64[2, tables]: ids of these lookups, and the number of them without a row.
        self._peeks = [np.zeros((2, len(tables)), np.int64) for tables in self._tables]

    def count_unseen(self, request: LookupRequest, unseen: Offsets | int) -> None:
        """Count the ids of a lookup that creates nothing; `unseen`: ids without a row, int64[tables]."""
        peeks = self._peeks[request.group]
        peeks[0] += np.diff(request.splits)
        peeks[1] += unseen

    def go_on(self, other: LocalTelemetry) -> None:
        """Take over the counters of another store of the same tables."""
        self._peeks = other._peeks

    def _with_peeks(self) -> ExchangeStatistics:
        peeked, unseen = (
            {
                table: int(count)
                for tables, counts in zip(self._tables, self._peeks, strict=True)
                for table, count in zip(tables, counts[which], strict=True)
            }
            for which in range(2)
        )
        return ExchangeStatistics(**merged([self._shard.statistics()]), peeked=peeked, unseen=unseen)
