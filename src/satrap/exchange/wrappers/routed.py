"""Shard servers for most tables, and replicas on all workers for a few that every batch needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeVar

import numpy as np

from satrap.errors import ConfigError, StoreError
from satrap.exchange.collective import CollectiveExchange
from satrap.exchange.lookup import Array, Lookup, LookupRequest, joined
from satrap.exchange.protocol import Exchange
from satrap.exchange.row_sources import CombinedRows
from satrap.exchange.servers import ServersExchange
from satrap.exchange.telemetry import Telemetry
from satrap.exchange.wrappers.replay import LooksUp, with_replays
from satrap.store.arrays import check_rows, not_finite

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class RoutedLookup(Lookup[Array]):
    """A lookup with one part at the shards and one part at the workers' replicas.

    Args:
        parts: the lookup at the shards, and the lookup in the replicas.
    """

    _: KW_ONLY
    parts: tuple[Lookup[Array], Lookup[Array]]


class RoutedExchange(Exchange):
    """Tables at shard servers, combined with tables that every worker holds completely.

    ```python
    servers = ServersExchange(addresses, large, worker=WorkerId(rank, size))
    exchange = RoutedExchange(servers, FreshReplicas(TorchRanks(), small))
    ```

    Replicated rows are never sent: each worker sends the gradients to all others, and all take the same
    steps. So these tables are updated once per step of all workers, also in `hybrid`, and all workers make
    the same calls in the same order, as with `CollectiveExchange`. In `sync`, rows are equal to the bit to
    rows on shard servers that hold all tables; gradients in float16 have a scale per table group, and
    replicated tables form their own groups.

    Snapshots have the same format as without replicas. Every worker must reach their folder.

    Args:
        servers: holds most tables; just made, and of the same worker as `replicas`.
        replicas: holds the others, all replicated; just made. With `FreshReplicas`, their rows are never
            stale. The routed exchange closes both.

    Attributes:
        servers, replicas: of the arguments.
        groups: groups of `servers`, then groups of `replicas`.

    Raises:
        ConfigError: the parts are not of the same worker, or a table of `replicas` is not replicated.
    """

    collective = True

    def __init__(self, servers: ServersExchange, replicas: CollectiveExchange) -> None:
        self.servers, self.replicas = servers, replicas
        names = [table for group in replicas.groups for table in group.tables]
        if servers.world != replicas.size or any(replicas.placement.of(t) != "replicated" for t in names):
            raise ConfigError(
                "a RoutedExchange needs replicated tables on exactly the workers of its shard servers",
                fix="give it FreshReplicas of the same workers",
            )
        replicas.rows.writer = "replica"
        self._first = len(servers.groups)
        moved = (replace(group, index=self._first + group.index) for group in replicas.groups)
        self.groups = [*servers.groups, *moved]
        self.moves = servers.moves
        self._sources: list[LooksUp] = [servers, replicas]
        self.telemetry = Telemetry.of(servers.telemetry, replicas.telemetry)
        # Rank 0 alone sends requests about all rows to the shards, for all ranks.
        sources = [replicas.rows] if replicas.rank else [servers.rows, replicas.rows]
        tables = dict.fromkeys(names, replicas.rows)
        self.rows = CombinedRows(*sources, tables=tables, ignored=replicas.rank > 0)

    def _replicated(self, request: LookupRequest) -> bool:
        return request.group >= self._first

    def _part(self, requests: Sequence[LookupRequest], values: Sequence[T], replicated: bool) -> list[T]:
        """Return the values of the requests that one part serves."""
        pairs = zip(requests, values, strict=True)
        return [value for request, value in pairs if self._replicated(request) == replicated]

    def _parts(self, requests: Sequence[LookupRequest]) -> tuple[list[LookupRequest], list[LookupRequest]]:
        """Return the requests of each part, with the numbers of its own groups."""
        ours = self._part(requests, requests, True)
        # Unknown groups keep their number, and are rejected later.
        valid = range(self._first, len(self.groups))
        moved = [replace(r, group=r.group - self._first) if r.group in valid else r for r in ours]
        return self._part(requests, requests, False), moved

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> RoutedLookup:
        """See `Exchange.lookup`."""
        first, second = self._parts(requests)
        # An empty request tells other ranks that this one has a batch.
        if first and not second and not create:
            group = self.replicas.groups[0]
            second = [LookupRequest(0, np.empty(0, np.uint64), np.zeros(len(group.tables) + 1, np.int64))]
        # First the replicas: the other ranks wait for this call.
        ours = self._sources[1].lookup(second, create=create)
        theirs = self._sources[0].lookup(first, create=create)

        lookup = RoutedLookup(requests, exchange=self, parts=(theirs, ours))
        lookup.recall = lambda: self._in_order(requests, theirs.unpooled_rows(), ours.unpooled_rows())

        def join(first: list[Array], second: list[Array]) -> list[Array]:
            lookup.active = ours.active
            return self._in_order(requests, first, second)

        lookup.rows = joined([theirs.rows, ours.rows], join)
        return lookup

    def replay(self, lookups: Iterable[Sequence[Array]]) -> None:
        """See `CanReplay.replay`."""
        rows, first = list(lookups), len(self.servers.groups)
        self._sources[0] = with_replays(self.servers, [arrays[:first] for arrays in rows])
        self._sources[1] = with_replays(self.replicas, [arrays[first:] for arrays in rows])

    def _in_order(
        self, requests: Sequence[LookupRequest], first: Sequence[Array], second: Sequence[Array]
    ) -> list[Array]:
        sources = iter(first), iter(second)
        return [next(sources[self._replicated(request)]) for request in requests]

    def prefetch(self, requests: Sequence[LookupRequest]) -> None:
        """See `Exchange.prefetch`."""
        self.servers.prefetch(self._parts(requests)[0])

    def _issue_update(
        self, lookup: Lookup[Any], gradients: Sequence[Array], lr_scale: float, *, checked: bool
    ) -> None:
        """See `Exchange._issue_update`. If a gradient is rejected here, neither part gets any."""
        parts = [Lookup[Array](part) for part in self._parts(lookup.requests)]
        if isinstance(lookup, RoutedLookup):
            parts = list(lookup.parts)
        if not checked:
            try:
                self._check(lookup.requests, gradients)
            except StoreError as error:
                self.replicas.fail(error)  # the other ranks wait for this update
                return
        first, second = (self._part(lookup.requests, gradients, replicated) for replicated in (False, True))
        # First the replicas: the other ranks wait for this call.
        self.replicas.apply(parts[1], second, lr_scale=lr_scale)
        self.servers.apply(parts[0], first, lr_scale=lr_scale)

    def _check(self, requests: Sequence[LookupRequest], gradients: Sequence[Array]) -> None:
        for request, rows in zip(requests, gradients, strict=True):
            group = self.groups[request.group]
            if not np.isfinite(check_rows(rows, request.rows, group.dim, "gradients")).all():
                raise not_finite(f"{len(rows)} rows of {', '.join(group.tables)}")

    def flush(self) -> None:
        """Wait until everything issued on any rank has been applied."""
        try:
            self.servers.flush()
        finally:
            self.replicas.flush()  # even after an error: the other ranks wait for this call

    def close(self) -> None:
        """See `Exchange.close`."""
        try:
            self.replicas.close()
        finally:
            self.servers.close()
