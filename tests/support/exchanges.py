"""Exchanges of every kind, empty, also with lookups that are issued early."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from satrap.exchange import Exchange, LocalExchange
from satrap.exchange.collective import Placement
from satrap.exchange.lookahead import with_lookahead
from satrap.exchange.servers import Wire
from satrap.optim import SGD, Adam
from satrap.schema import Table
from satrap.store import Shard, StoreConfig
from tests.contract.parties import EXACT, SEED, TABLES, connect, threads
from tests.exchange.collective.parties import MIXED, collective

HALF = [
    Table("a", dim=4, optimizer=Adam(lr=0.1), dtype="bfloat16"),
    Table("b", dim=4, optimizer=Adam(lr=0.1), dtype="bfloat16"),
    Table("c", dim=17, optimizer=SGD(lr=0.1, momentum=0.9), dtype="float16"),
]


@contextmanager
def opened(kind: str, tables: list[Table] = TABLES, wire: Wire = EXACT) -> Iterator[Exchange]:
    """Yield an exchange that holds no rows."""
    if kind == "local":
        exchange: Any = LocalExchange(Shard(tables, seed=SEED))
        yield exchange
        exchange.close()
        return
    if kind[0] in "cm":
        placement = MIXED if kind == "mixed-4" else Placement()
        with collective(int(kind[-1]), tables, StoreConfig(seed=SEED), placement, wire) as exchange:
            yield exchange
        return
    with threads(int(kind[-1])) as shards:
        exchange = connect([shard.address for shard in shards], tables=tables, wire=wire)
        yield exchange
        exchange.close()


@contextmanager
def ahead(kind: str, *arguments: Any) -> Iterator[Exchange]:
    """Yield an exchange whose lookups may be issued early."""
    with opened(kind, *arguments) as exchange:
        for rank in getattr(exchange, "ranks", ()):
            assert with_lookahead(rank) is rank
        found = exchange if hasattr(exchange, "ranks") else with_lookahead(exchange)
        yield found
        found.close()
