"""Counters of shard servers and of the client that asks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from satrap.exchange.servers.shards import Shards
from satrap.exchange.traffic import Meter, Traffic
from satrap.rpc.client.call import told
from satrap.rpc.wire.frames import Kind


class ServersTelemetry:
    """Counters of shards and of this client.

    Args:
        shards: the shards.

    Attributes:
        meter: of this client's lookups and updates.
        refused: updates that this client refused before it sent them.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards, self.meter, self.refused = shards, Meter(), 0

    def statistics(self) -> Mapping[str, Any]:
        """Return the sums over the shards of `satrap.store.Shard.statistics`, and what this client saw.

        Besides: `server`, sums of the servers' own counters (`malformed` messages, requests `repeated`,
        `queued`, ...); `shards`, the statistics of each; `exchange`, see `traffic`.
        """
        merged = merge_statistics([told(parts) for parts in self._shards.ask_all(Kind.STATISTICS)])
        merged["refused"] += self.refused
        merged["exchange"] = self.traffic()
        return merged

    def traffic(self) -> Traffic:
        """See `Telemetry.traffic`."""
        return self.meter.report(**self._shards.transfer())


def merge_statistics(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of all shards as those of one store, and each shard's under `shards`."""
    merged = _sum(shards)
    merged["load_factor"] = [float(np.mean(values)) for values in zip(*_lists(shards), strict=True)]
    return {**merged, "shards": list(shards)}


def _lists(shards: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    return [list(s.get("load_factor", [])) for s in shards]


def _sum(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in parts[0].items():
        if isinstance(value, Mapping):
            out[key] = _sum([p[key] for p in parts])
        elif isinstance(value, int | float):
            out[key] = sum(p[key] for p in parts)
    return out
