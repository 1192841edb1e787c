"""Which shard owns which bucket."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError
from satrap.store import BUCKETS


@dataclass(frozen=True, slots=True)
class ShardMap:
    """Bucket -> shard, at one epoch: an even split into ranges of neighbouring buckets.

    Another split must have another epoch. Requests carry the epoch, and a shard refuses any other, so no
    request is half-served under an old map.

    Args:
        shards: number of shards, 1..4096.
        epoch: >= 1, default 1.

    Raises:
        ConfigError: a number out of range.
    """

    shards: int
    epoch: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= BUCKETS:
            raise ConfigError(
                f"shards must be 1 to {BUCKETS}, got {self.shards}", why=f"there are {BUCKETS} buckets"
            )
        if not 1 <= self.epoch < 1 << 32:
            raise ConfigError(f"the epoch of a shard map must be 1 to {2**32 - 1}, got {self.epoch}")

    @property
    def owners(self) -> npt.NDArray[np.uint16]:
        """Shard of each bucket, uint16[4096], ascending."""
        return (np.arange(BUCKETS) * self.shards // BUCKETS).astype(np.uint16)

    def buckets(self, shard: int) -> range:
        """Return the buckets of a shard."""
        first = -(-shard * BUCKETS // self.shards)
        return range(first, -(-(shard + 1) * BUCKETS // self.shards))
