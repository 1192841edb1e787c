"""Rows in other processes: shard servers, and their exchange.

`ShardServer` serves one shard of every table on a socket; `satrap shard` runs it. A worker uses
`ServersExchange`. They exchange checked binary messages (`satrap.rpc`), never code.
"""

from satrap.exchange.servers.client.exchange import ServersExchange
from satrap.exchange.servers.config import WorkerId
from satrap.exchange.servers.shard.server import ShardServer
from satrap.exchange.shard_map import ShardMap
from satrap.rpc.client.client import ClientOptions
from satrap.rpc.server.sessions import Limits
from satrap.settings.wire import Wire

__all__ = [
    "ClientOptions",
    "Limits",
    "ServersExchange",
    "ShardMap",
    "ShardServer",
    "Wire",
    "WorkerId",
]
