"""Lookups that are issued early and return the rows of their turn."""

from __future__ import annotations

from satrap.errors import ConfigError
from satrap.exchange.collective.client import CollectiveExchange
from satrap.exchange.local import LocalExchange
from satrap.exchange.local_lookahead import LocalLookahead
from satrap.exchange.protocol import Exchange
from satrap.exchange.servers.client.exchange import ServersExchange
from satrap.exchange.servers.client.lookahead import ServersLookahead


def with_lookahead(exchange: Exchange) -> Exchange:
    """Return an exchange whose lookups see all updates of earlier lookups, however early they are issued.

    A lookup that creates is complete once every lookup before it has had its update. Each must be followed by
    one update, in the same order. The store must evict nothing and admit every id.

    Args:
        exchange: just made; the new exchange owns it from then on.

    Raises:
        ConfigError: the exchange does not support lookahead.
    """
    if type(exchange) is LocalExchange:
        return LocalLookahead(exchange.shard)
    if type(exchange) is ServersExchange and exchange.world == 1 and exchange.mode == "hybrid":
        return ServersLookahead(exchange)
    if type(exchange) is CollectiveExchange:
        if exchange.pooled:
            raise ConfigError(
                "lookahead cannot be combined with an exchange that pools rows",
                why="a pooled vector cannot be patched with the rows that have changed",
                fix="give CollectiveExchange, or Place.from_environment, pools=False",
            )
        exchange.look_ahead()
        return exchange
    raise ConfigError(
        "lookahead requires a single process, workers that hold the rows, or a single worker whose shard "
        "servers apply updates as they arrive",
        why="with several workers, a worker cannot know which rows others change after its early lookup",
        fix="train with one worker, with cluster.exchange: collective, or without lookahead",
    )
