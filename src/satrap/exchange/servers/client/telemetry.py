"""Counters of shard servers and of one client."""

from __future__ import annotations

from dataclasses import replace

from satrap.exchange.statistics import ExchangeStatistics, ShardStatistics
from satrap.exchange.traffic import Meter, Traffic
from satrap.rpc.client.call import told
from satrap.rpc.client.client import Client
from satrap.rpc.wire.frames import MessageKind
from satrap.store.statistics import merged


class ServersTelemetry:
    """Counters of shards and of this client.

    Args:
        shards: the shards.

    Attributes:
        meter: meter of this client's lookups and updates.
        refused: updates that this client rejected before it sent them.
    """

    def __init__(self, shards: Client) -> None:
        self._shards, self.meter, self.refused = shards, Meter(), 0

    def statistics(self) -> ExchangeStatistics:
        """See `Telemetry.statistics`; `refused` includes the updates that this client rejected."""
        shards = [ShardStatistics.of(told(parts)) for parts in self._shards.ask_all(MessageKind.STATISTICS)]
        statistics = ExchangeStatistics(**merged(shards), shards=tuple(shards))
        return replace(statistics, refused=statistics.refused + self.refused)

    def traffic(self) -> Traffic:
        """See `Telemetry.traffic`."""
        return self.meter.report(**self._shards.transfer())
