from __future__ import annotations

from dataclasses import asdict

import pytest

from satrap.exchange import ShardStatistics
from satrap.rpc.server.statistics import ServerStatistics
from satrap.rpc.wire.text import pack_text, unpack_text
from satrap.store.statistics import TableStatistics, TierStatistics


@pytest.mark.parametrize("tier", [None, TierStatistics(rows=4, prefetch_hits=2)])
def test_the_counters_of_a_shard_survive_the_wire(tier: TierStatistics | None) -> None:
    sent = ShardStatistics(
        rows=3,
        bytes=1 << 40,
        load_factor=(0.5, 0.25),
        tables={"a": TableStatistics(rows=3, evicted=9)},
        tier=tier,
        shard=1,
        steps=7,
        server=ServerStatistics(messages=5, requests={"lookup": 2}, seconds=1.5),
    )
    assert ShardStatistics.of(unpack_text(pack_text(asdict(sent)))) == sent
    assert ShardStatistics.of(unpack_text(pack_text(asdict(ShardStatistics())))) == ShardStatistics()
