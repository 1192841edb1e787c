"""Which buckets move so that shards have equally many rows: the fewest, and neighbours together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from satrap.exchange.shard_map import Owners


def balanced(owners: Owners, rows: npt.NDArray[np.int64], members: Sequence[int]) -> Owners:
    """Return the owners of the buckets, uint16[4096], after the fewest moves that make shards even.

    A shard that has too many rows gives buckets from its end on; one that is no member gives all. Each shard
    that has too few takes neighbours. So shards differ by about the rows of a bucket.

    Args:
        owners: of the buckets now, uint16[4096].
        rows: in each bucket, int64[4096]. Buckets without rows count a little: they may get some.
        members: numbers of the shards among which the rows are to be even, ascending.
    """
    weights, found = rows * len(rows) + 1, owners.copy()
    share = weights.sum() / len(members)
    loads = {shard: int(weights[owners == shard].sum()) for shard in members}
    free = np.isin(owners, list(members), invert=True)
    for shard in members:
        for bucket in np.flatnonzero(owners == shard)[::-1]:
            if loads[shard] - share < weights[bucket]:
                break
            free[bucket] = True
            loads[shard] -= int(weights[bucket])
    takers = [shard for shard in members if loads[shard] < share]
    for bucket in np.flatnonzero(free):
        while len(takers) > 1 and loads[takers[0]] + weights[bucket] / 2 > share:
            takers.pop(0)
        taker = takers[0] if takers else members[0]
        found[bucket] = taker
        loads[taker] += int(weights[bucket])
    return found


def towards(owners: Owners, goal: Owners, rows: npt.NDArray[np.int64], most: int) -> Owners:
    """Return owners on the way to a goal, uint16[4096]: the next buckets move whose rows are `most` at most.

    At least one bucket moves if any has to. They are taken in order, so that neighbours move together.

    Args:
        owners, goal: of the buckets now and in the end, uint16[4096].
        rows: in each bucket, int64[4096].
        most: rows that may move.
    """
    different = np.flatnonzero(owners != goal)
    fit = int(np.searchsorted(np.cumsum(rows[different]), most, side="right"))
    found, next_ones = owners.copy(), different[: max(1, fit)]
    found[next_ones] = goal[next_ones]
    return found
