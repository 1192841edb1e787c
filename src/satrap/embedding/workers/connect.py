"""From a worker to its embedding worker and the shards behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from satrap.embedding.workers.client import PooledExchange
from satrap.exchange.servers import ServersExchange, Wire
from satrap.exchange.servers.client import OWN_RUN
from satrap.exchange.servers.config import tables_to_dicts
from satrap.schema import Schema, Table

_DEFAULTS = {
    "seed": 0,
    "memory": None,
    "mode": "hybrid",
    "rank": 0,
    "world": 1,
    "deadline": 30.0,
    "generation": 0,
    "run": OWN_RUN,
}
_SETTINGS = ("admission", "eviction", "tier")


def connect_pooled(
    name: str,
    address: str,
    shards: Sequence[str],
    schema: Schema,
    tables: Sequence[Table],
    **about: Any,
) -> PooledExchange:
    """Return the exchange of a worker through an embedding worker.

    Args:
        name: of the embedding worker, for errors.
        address: HOST:PORT of the embedding worker.
        shards: HOST:PORT of each shard, as the embedding worker has them.
        schema: the features, which say how ids are pooled.
        tables: the tables, each with an optimizer.
        **about: other arguments of `ServersExchange`, which mean the same.

    Raises:
        ConfigError: impossible arguments, or servers that are configured for something else.
        ExchangeError: a server cannot be reached or refuses the key.
    """
    wire = about.get("wire") or Wire()
    hello = {
        "schema": schema.to_dict(),
        "tables": list(tables_to_dicts(tables, None)),
        "shards": len(shards),
        "wire": [wire.forward, wire.backward],
        **{key: about.get(key, default) for key, default in _DEFAULTS.items()},
        **{key: found and found.to_dict() for key in _SETTINGS for found in [about.get(key)]},
    }
    line = {key: about[key] for key in ("key", "deadline", "heartbeat") if key in about}
    straight = ServersExchange(shards, tables, **{**about, "wire": wire, "mode": "hybrid"})
    return PooledExchange(name, address, straight, hello, wire=wire, **line)
