from __future__ import annotations

import numpy as np

from tests.contract.parties import TABLES, request
from tests.exchange.collective.parties import Together, members, together


def test_counters_are_those_of_all_ranks_at_the_last_flush() -> None:
    ranks = members(3, TABLES)
    for number, rank in enumerate(ranks):
        rank.lookup([request(0, list(range(10 * number, 10 * number + 10)), [])], create=True)
    together([rank.flush for rank in ranks])
    told = [rank.telemetry.statistics() for rank in ranks]
    assert told[0] == told[1] == told[2]
    assert (told[0].rows, told[0].tables["a"].misses, told[0].shards) == (30, 30, ())
    assert told[0].bytes == sum(rank.shard.statistics().bytes for rank in ranks)
    for rank in ranks:
        rank.apply(
            rank.lookup([request(0, [99], [])], create=True), [np.ones((1, 4), np.float32)], lr_scale=1.0
        )
    assert ranks[1].telemetry.statistics().rows == 30  # a rank may ask alone
    together([rank.flush for rank in ranks])
    assert ranks[1].telemetry.statistics().rows == 31
    for step in range(20):
        for rank in ranks:
            rank.apply(
                rank.lookup([request(1, [step])], create=True), [np.ones((1, 17), np.float32)], lr_scale=1.0
            )
    together([lambda r=r: r.lookup([], create=True).result() for r in ranks])  # type: ignore[misc]
    assert 31 < ranks[1].telemetry.statistics().rows <= 51  # during training, too
    traffic = ranks[2].telemetry.traffic()
    assert (traffic.lookups.count, traffic.pushes.count, traffic.waiting) == (23, 21, 0)
    Together(ranks).close()
