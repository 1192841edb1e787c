"""Which buckets move so that shards are even: few, and neighbours together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from satrap.exchange.shard_map import Owners

Counts = npt.NDArray[np.int64]

COARSE = 1 / 128
"""Part of a share from which on a bucket is dealt by itself, to who has least; others go with neighbours."""


def balanced(owners: Owners, weights: Counts, members: Sequence[int]) -> Owners:
    """Return the owners of the buckets, uint16[4096], after few moves that make shards even.

    A shard that has too much gives heavy buckets, if they are not more than that, then others from its end
    on; one that is no member gives all. Each shard that has too little takes neighbours. So shards differ by
    about a bucket. Where one bucket is more than a share, its shard gives all others.

    Args:
        owners: of the buckets now, uint16[4096].
        weights: what is to be even, of each bucket, int64[4096]; the sum is below 2^51. Buckets without any
            count a little: they may move.
        members: numbers of the shards among which it is to be even, ascending.
    """
    parts, found = weights * len(weights) + 1, owners.copy()
    loads = {shard: int(parts[owners == shard].sum()) for shard in members}
    level, mean = _level(parts, len(members)), parts.sum() / max(1, np.count_nonzero(weights))
    heavy = parts > max(COARSE * parts.sum() / len(members), 4 * mean)
    for bucket in sorted(np.flatnonzero(heavy), key=lambda bucket: -parts[bucket]):
        weight, owner = int(parts[bucket]), int(found[bucket])
        least = min(members, key=lambda shard: loads[shard])
        if owner in loads:
            if weight > loads[owner] - level + mean or loads[least] >= level:
                continue
            loads[owner] -= weight
        loads[least] += weight
        found[bucket] = least
    free = np.isin(found, list(members), invert=True)
    for shard in members:
        for bucket in np.flatnonzero((found == shard) & ~heavy)[::-1]:
            if loads[shard] - level < parts[bucket]:
                break
            free[bucket] = True
            loads[shard] -= int(parts[bucket])
    _deal(np.flatnonzero(free), parts, found, loads)
    return found


def _level(parts: Counts, shards: int) -> float:
    """Return what each shard has in the end that has no bucket of more than its share."""
    left = float(parts.sum())
    for most in np.sort(parts)[::-1][: shards - 1]:
        if most * shards <= left:
            break
        left, shards = left - float(most), shards - 1
    return left / shards


def _deal(free: Counts, parts: Counts, found: Owners, loads: dict[int, int]) -> None:
    """Give the free buckets to those who have least, in order, so that neighbours stay together."""
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
    """Return by how much the fullest shard has less with the owners of a goal, as a part of a share.

    Args:
        owners, goal: of the buckets now and in the end, uint16[4096].
        weights: of each bucket, int64[4096].
        members: numbers of the shards.
    """
    fullest = (np.bincount(each, weights, minlength=max(members) + 1).max() for each in (owners, goal))
    return float(next(fullest) - next(fullest)) * len(members) / max(1.0, float(weights.sum()))


def towards(owners: Owners, goal: Owners, rows: Counts, most: int) -> Owners:
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
