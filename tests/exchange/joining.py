"""Workers, as threads of this process, with tables at shard servers and replicas of others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from satrap.exchange import Exchange
from satrap.exchange.collective import CollectiveExchange, FreshReplicas, Placement
from satrap.exchange.servers import ClientOptions, ServersExchange, Wire, WorkerId
from satrap.exchange.wrappers.routed import RoutedExchange
from satrap.store import StoreConfig
from tests.contract.parties import EXACT, PATIENT, threads
from tests.exchange.collective.parties import Meeting, ThreadRanks, Together, together


def connecting(
    addresses: Sequence[str],
    world: int,
    *,
    store: StoreConfig = StoreConfig(),
    replicated: Collection[str] | None,
    wire: Wire = EXACT,
    mode: str = "hybrid",
    fresh: bool = True,
    generation: int = 0,
) -> Callable[[int, Sequence[Any]], Exchange]:
    """Return what makes the exchange of a rank for some tables.

    Without replicated tables, shards hold all; if they are None, the workers hold all.
    """
    meeting = Meeting(world)

    def held(rank: int, tables: Sequence[Any], placement: Placement) -> CollectiveExchange:
        here = ThreadRanks(meeting, rank)
        if fresh and placement.default == "replicated":
            return FreshReplicas(here, tables, store=store, wire=wire)
        return CollectiveExchange(here, tables, store=store, wire=wire, placement=placement)

    def connect(rank: int, tables: Sequence[Any]) -> Exchange:
        if replicated is None:
            return held(rank, tables, Placement())
        hot = [table for table in tables if table.name in replicated]
        if len(hot) == len(tables):
            return held(rank, hot, Placement("replicated"))
        servers = ServersExchange(
            addresses,
            [table for table in tables if table.name not in replicated],
            store=store,
            wire=wire,
            mode=mode,
            worker=WorkerId(rank, world, generation),
            options=ClientOptions(deadline=PATIENT),
        )
        if not replicated:
            return servers
        return RoutedExchange(servers, held(rank, hot, Placement("replicated")))

    return connect


@contextmanager
def joined(ranks: int, tables: Sequence[Any], store: StoreConfig, **arguments: Any) -> Iterator[Exchange]:
    """Several workers with two shards, asked as one exchange."""
    with threads(2) as servers:
        connect = connecting([s.address for s in servers], ranks, store=store, **arguments)
        made = Together(together([lambda r=r: connect(r, tables) for r in range(ranks)]))  # type: ignore[arg-type, misc]
        yield made  # type: ignore[misc]
        made.close()
