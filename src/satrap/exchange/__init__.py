"""How a worker's ids reach the rows and how gradients return.

One protocol for rows, `Exchange`, with one for `Durability` and one for `Telemetry`; `LocalExchange` keeps
the store in this process. A request names, per table group, the distinct ids of a batch. A `Lookup` brings
one array of rows per group, and its update takes it back. Requests of one worker are served in the order they
are made: that order *is* the training schedule.
"""

from satrap.exchange.local import LocalExchange
from satrap.exchange.lookup import Lookup, Request
from satrap.exchange.protocol import Cut, Durability, Exchange, Snapshot, TableGroup, Telemetry
from satrap.exchange.statistics import ExchangeStatistics, ShardStatistics
from satrap.exchange.traffic import Traffic

__all__ = [
    "Cut",
    "Durability",
    "Exchange",
    "ExchangeStatistics",
    "LocalExchange",
    "Lookup",
    "Request",
    "ShardStatistics",
    "Snapshot",
    "TableGroup",
    "Telemetry",
    "Traffic",
]
