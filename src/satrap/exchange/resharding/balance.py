"""Chooses bucket moves that balance shards: few moves, and neighbouring buckets together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from satrap.exchange.shard_map import Owners

Counts = npt.NDArray[np.int64]

COARSE = 1 / 128
"""A bucket above this part of a shard's share is assigned on its own, to the least loaded shard."""


def balanced(owners: Owners, weights: Counts, members: Sequence[int]) -> Owners:
    """Return the owners of the buckets, uint16[4096], after few moves that balance the shards.

    A shard with too much load gives away heavy buckets, unless they exceed its surplus, and then others from
    its end. A shard that is not a member gives away all buckets. Each shard with too little takes
    neighbouring buckets. So shards differ by about one bucket. If one bucket is more than a share, its shard
    gives away all others.

    Args:
        owners: present owners of the buckets, uint16[4096].
        weights: the load of each bucket, int64[4096]; the sum is below 2^51. Buckets without load count a
            little, so that they may move.
        members: numbers of the shards to balance, ascending.
    """
    parts, result = weights * len(weights) + 1, owners.copy()
    loads = {shard: int(parts[owners == shard].sum()) for shard in members}
    level, mean = _level(parts, len(members)), parts.sum() / max(1, np.count_nonzero(weights))
    heavy = parts > max(COARSE * parts.sum() / len(members), 4 * mean)
    for bucket in sorted(np.flatnonzero(heavy), key=lambda bucket: -parts[bucket]):
        weight, owner = int(parts[bucket]), int(result[bucket])
        least = min(members, key=lambda shard: loads[shard])
        if owner in loads:
            if weight > loads[owner] - level + mean or loads[least] >= level:
                continue
            loads[owner] -= weight
        loads[least] += weight
        result[bucket] = least
    free = np.isin(result, list(members), invert=True)
    for shard in members:
        for bucket in np.flatnonzero((result == shard) & ~heavy)[::-1]:
            if loads[shard] - level < parts[bucket]:
                break
            free[bucket] = True
            loads[shard] -= int(parts[bucket])
    _deal(np.flatnonzero(free), parts, result, loads)
    return result


def _level(parts: Counts, shards: int) -> float:
    """Return the final load of each shard that has no bucket above its share."""
    rest = float(parts.sum())
    for most in np.sort(parts)[::-1][: shards - 1]:
        if most * shards <= rest:
            break
        rest, shards = rest - float(most), shards - 1
    return rest / shards


def _deal(free: Counts, parts: Counts, found: Owners, loads: dict[int, int]) -> None:
    """Assign the free buckets to the least loaded shards, in order, so that neighbours stay together."""
    takers = sorted(loads, key=lambda shard: loads[shard])
    rest = int(parts[free].sum())
    while loads[takers[-1]] * len(takers) > rest + sum(loads[shard] for shard in takers):
        takers.pop()
    level = (rest + sum(loads[shard] for shard in takers)) / len(takers)
    takers.sort()
    for bucket in free:
        while len(takers) > 1 and loads[takers[0]] + parts[bucket] / 2 > level:
            takers.pop(0)
        found[bucket] = takers[0]
        loads[takers[0]] += int(parts[bucket])


def gain(owners: Owners, goal: Owners, weights: Counts, members: Sequence[int]) -> float:
    """Return by how much the goal relieves the fullest shard, as a fraction of a shard's share.

    Args:
        owners, goal: present and final owners of the buckets, uint16[4096].
        weights: load of each bucket, int64[4096].
        members: numbers of the shards.
    """
    fullest = (np.bincount(each, weights, minlength=max(members) + 1).max() for each in (owners, goal))
    return float(next(fullest) - next(fullest)) * len(members) / max(1.0, float(weights.sum()))


def towards(owners: Owners, goal: Owners, rows: Counts, most: int) -> Owners:
    """Return the owners after the next moves towards a goal, uint16[4096]: at most `most` rows move.

    At least one bucket moves if any differs. Buckets move in order, so that neighbours move together.

    Args:
        owners, goal: present and final owners of the buckets, uint16[4096].
        rows: rows in each bucket, int64[4096].
        most: limit of the rows that move.
    """
    different = np.flatnonzero(owners != goal)
    fit = int(np.searchsorted(np.cumsum(rows[different]), most, side="right"))
    result, next_ones = owners.copy(), different[: max(1, fit)]
    result[next_ones] = goal[next_ones]
    return result
