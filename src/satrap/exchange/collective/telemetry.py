"""Counters of the rows that all ranks hold together."""

from __future__ import annotations

from dataclasses import asdict, replace

from satrap.exchange.collective.messages import Channel, Operation
from satrap.exchange.collective.placement import Holders
from satrap.exchange.statistics import ExchangeStatistics, ShardStatistics
from satrap.exchange.traffic import Meter, Traffic
from satrap.store import Shard
from satrap.store.statistics import TableStatistics, merged


class CollectiveTelemetry:
    """Counters as of the last time that the ranks shared them; reading them is not a collective call.

    Args:
        shard: the rows of this rank.
        channel: channel to the other ranks.
        holders: placement of rows; decides whose counters of a table count.

    Attributes:
        meter: meter of this rank's requests.
        refused: updates that this rank rejected before it sent them.
        channels: channels whose bytes count.
    """

    def __init__(self, shard: Shard, channel: Channel, holders: Holders) -> None:
        self._shard, self._channel, self._holders, self.meter = shard, channel, holders, Meter()
        self.refused, self.channels = 0, [channel]
        self._shards = [ShardStatistics(**merged([shard.statistics()]))] * channel.ranks.size

    def share(self) -> None:
        """Send this rank's counters to all ranks, and store theirs."""
        statistics = ShardStatistics(**merged([self._shard.statistics()]), shard=self._channel.ranks.rank)
        tables = {
            t: c if self._holders.counted(t) else TableStatistics() for t, c in statistics.tables.items()
        }
        rows = statistics.rows - sum(statistics.tables[table].rows - tables[table].rows for table in tables)
        statistics = replace(statistics, rows=rows, tables=tables, refused=statistics.refused + self.refused)
        self._shards = [
            ShardStatistics.of(reply) for reply in self._channel.tell(Operation.FLUSH, asdict(statistics))
        ]

    def statistics(self) -> ExchangeStatistics:
        """See `Telemetry.statistics`; a few updates old unless all ranks have just called `flush`."""
        return ExchangeStatistics(**merged(self._shards))

    def traffic(self) -> Traffic:
        """See `Telemetry.traffic`."""
        sent, received = (sum(getattr(c, way) for c in self.channels) for way in ("sent", "received"))
        return self.meter.report(sent=sent, received=received)
