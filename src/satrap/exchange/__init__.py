"""How a worker looks up rows by id and sends gradients back.

`Exchange` is the one protocol for rows, with `RowSource` and `Telemetry` next to it; `LocalExchange` keeps
the store in this process. A request names, per table group, the unique ids of a batch. A `Lookup` returns one
array of rows per group, and its update takes their gradients. Requests of one worker are served in the order
in which they are made: this order *is* the training schedule.
"""

from satrap.exchange.local import LocalExchange
from satrap.exchange.lookup import Lookup, LookupRequest
from satrap.exchange.protocol import Exchange, RowSource, SnapshotCut, TableGroup
from satrap.exchange.telemetry import ExchangeStatistics, ShardStatistics, Telemetry, Traffic

__all__ = [
    "Exchange",
    "ExchangeStatistics",
    "LocalExchange",
    "Lookup",
    "LookupRequest",
    "RowSource",
    "ShardStatistics",
    "SnapshotCut",
    "TableGroup",
    "Telemetry",
    "Traffic",
]
