"""The counters of the stores behind an exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from satrap.rpc.server.statistics import ServerStatistics
from satrap.store import Statistics
from satrap.store.statistics import TableStatistics, TierStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStatistics(Statistics):
    """Counters of a shard server; store counters are 0 before the first hello.

    Args:
        shard: its number, None before the first hello.
        steps: complete optimizer steps of `sync` with several workers.
        server: counters of its server.
    """

    shard: int | None = None
    steps: int = 0
    server: ServerStatistics = field(default_factory=ServerStatistics)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ShardStatistics:
        """Build it from `dataclasses.asdict` data; accepts lists for tuples, as in JSON."""
        fields = dict(values)
        fields["load_factor"] = tuple(fields["load_factor"])
        fields["tables"] = {name: TableStatistics(**counts) for name, counts in fields["tables"].items()}
        fields["tier"] = fields["tier"] and TierStatistics(**fields["tier"])
        return cls(**{**fields, "server": ServerStatistics(**fields["server"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeStatistics(Statistics):
    """Counters of all stores of an exchange together.

    Args:
        shards: counters of each shard server; empty without servers.
        peeked, unseen: by table, ids of lookups that create nothing, and the number of these without a row;
            empty unless all rows are in this process.
    """

    shards: tuple[ShardStatistics, ...] = ()
    peeked: Mapping[str, int] = field(default_factory=dict)
    unseen: Mapping[str, int] = field(default_factory=dict)
