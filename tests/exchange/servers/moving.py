"""Moves rows between shards as the workers of a run do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from satrap.exchange.servers import ServersExchange, ShardMap
from satrap.store import BUCKETS

Owners = np.ndarray
RUN = 16
"""Buckets dealt together: with fewer, most of the work is on maps, not on rows."""


def move(exchanges: Sequence[ServersExchange], new: ShardMap, joining: dict[int, str] | None = None) -> int:
    """Move as the workers of a run do; return the rows that were carried."""
    for exchange in exchanges:
        exchange.flush()
    for exchange in exchanges:
        exchange.moves.join(new, joining or {})
    carried = exchanges[0].moves.carry(new)
    for exchange in exchanges:
        exchange.moves.adopt(new)
    return carried.rows


def scattered(members: Sequence[int], seed: int) -> Owners:
    return np.random.default_rng(seed).choice(np.array(members, np.uint16), BUCKETS // RUN).repeat(RUN)
