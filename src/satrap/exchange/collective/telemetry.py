"""Counters of the rows that all ranks hold together."""

from __future__ import annotations

from dataclasses import asdict, replace

from satrap.exchange.collective.messages import Channel, Operation
from satrap.exchange.collective.placement import Holders
from satrap.exchange.telemetry import ExchangeStatistics, ShardStatistics, Telemetry
from satrap.store import Shard
from satrap.store.statistics import TableStatistics, merged


class CollectiveTelemetry(Telemetry):
    """Counters as of the last time that the ranks shared them; reading them is not a collective call.

    They are a few updates old unless all ranks have just called `flush`.

    Args:
        shard: the rows of this rank.
        channel: channel to the other ranks.
        holders: placement of rows; decides whose counters of a table count.

    Attributes:
        channels: channels whose bytes count.
    """

    def __init__(self, shard: Shard, channel: Channel, holders: Holders) -> None:
        super().__init__(lambda: ExchangeStatistics(**merged(self._shards)), self._sent)
        self._shard, self._channel, self._holders = shard, channel, holders
        self.channels = [channel]
        self._shards = [ShardStatistics(**merged([shard.statistics()]))] * channel.ranks.size

    def _sent(self) -> dict[str, int]:
        return {way: sum(getattr(c, way) for c in self.channels) for way in ("sent", "received")}

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
