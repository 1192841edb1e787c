"""Tables that every worker holds, and whose rows are never stale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from satrap.exchange.collective.client import CollectiveExchange
from satrap.exchange.collective.placement import Placement
from satrap.exchange.collective.ranks import Ranks
from satrap.exchange.lookup import Array, Lookup, LookupRequest
from satrap.schema import Table
from satrap.settings.wire import Wire
from satrap.store import StoreConfig


class FreshReplicas(CollectiveExchange):
    """A collective exchange whose tables are all replicated: lookups see every update before their own step.

    However early a lookup is issued, it is complete once every lookup before it has had its update. So each
    lookup that creates must be followed by one update, in the same order. Arguments and errors: see
    `CollectiveExchange`.
    """

    def __init__(self, ranks: Ranks, tables: Sequence[Table], *, store: StoreConfig, wire: Wire) -> None:
        super().__init__(ranks, tables, store=store, wire=wire, placement=Placement("replicated"))
        self.look_ahead()

    def lookup(self, requests: Sequence[LookupRequest], *, create: bool) -> Lookup[Array]:
        """See `Exchange.lookup`. `unpooled_rows` of a waiting lookup returns the present rows."""
        lookup = super().lookup(requests, create=create)
        if create:
            lookup.recall = partial(self.here, requests)
        return lookup

    def replay(self, lookups: Iterable[Sequence[Array]]) -> None:
        """See `CanReplay.replay`. The rows are looked up nevertheless, so that they are never stale."""
