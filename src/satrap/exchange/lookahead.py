"""Lookups that are issued early and yet see what they would see in their turn."""

from __future__ import annotations

from satrap.errors import ConfigError
from satrap.exchange.collective.client import CollectiveExchange
from satrap.exchange.local import LocalExchange
from satrap.exchange.local_lookahead import LocalLookahead
from satrap.exchange.protocol import Exchange
from satrap.exchange.servers.client import ServersExchange
from satrap.exchange.servers.lookahead import ServersLookahead


def with_lookahead(exchange: Exchange) -> Exchange:
    """Return an exchange whose lookups see all updates of earlier lookups, however early they are issued.

    A lookup that creates is complete once every lookup before it has had its update. Each must be followed by
    one, in the same order. The store must evict nothing and admit every id.

    Args:
        exchange: just made; it belongs to the new one from then on.

    Raises:
        ConfigError: it cannot look ahead.
    """
    if type(exchange) is LocalExchange:
        return LocalLookahead(exchange.shard)
    if type(exchange) is ServersExchange and exchange.world == 1 and exchange.mode == "hybrid":
        return ServersLookahead(exchange)
    if type(exchange) is CollectiveExchange:
        if exchange.pooled:
            raise ConfigError(
                "lookahead does not go with an exchange that pools rows",
                why="a vector cannot be patched with the rows that have changed",
                fix="give CollectiveExchange, or Place.from_environment, pools=False",
            )
        exchange.look_ahead()
        return exchange
    raise ConfigError(
        "lookahead is for one process, workers that hold the rows, or one worker whose shard servers apply "
        "updates as they come",
        why="a worker cannot know what others do to rows that it has looked up early",
        fix="train with one worker, with cluster.exchange: collective, or without lookahead",
    )
