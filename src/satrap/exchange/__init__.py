"""How a worker looks up rows by id and sends gradients back.

`Exchange` is the one protocol for rows, with `Durability` and `Telemetry` next to it; `LocalExchange` keeps
the store in this process. A request names, per table group, the unique ids of a batch. A `Lookup` returns one
array of rows per group, and its update takes their gradients. Requests of one worker are served in the order
in which they are made: this order *is* the training schedule.
"""

from satrap.exchange.local import LocalExchange
from satrap.exchange.lookup import Lookup, LookupRequest
from satrap.exchange.protocol import Durability, Exchange, Snapshot, SnapshotCut, TableGroup, Telemetry
from satrap.exchange.statistics import ExchangeStatistics, ShardStatistics
from satrap.exchange.traffic import Traffic

__all__ = [
    "Durability",
    "Exchange",
    "ExchangeStatistics",
    "LocalExchange",
    "Lookup",
    "LookupRequest",
    "ShardStatistics",
    "Snapshot",
    "SnapshotCut",
    "TableGroup",
    "Telemetry",
    "Traffic",
]
