"""The assignment of buckets to shards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from xxhash import xxh64_hexdigest

from satrap.errors import ConfigError
from satrap.runtime.arguments import checked
from satrap.store import BUCKETS
from satrap.store.buckets import runs_of

Owners = npt.NDArray[np.uint16]


@checked()
@dataclass(frozen=True, slots=True)
class ShardMap:
    """Bucket -> shard, at one epoch; by default an even split into ranges of neighbouring buckets.

    A different map must have another epoch. Requests carry the epoch, and a shard rejects any other, so no
    request is half-served under an old map. A shard never changes its number: after a shard has left, its
    number stays unused.

    Args:
        shards: numbers of shards are below it, 1..4096.
        epoch: >= 1, default 1.
        runs: (shard, number of neighbouring buckets), from bucket 0 to 4095; default: an even split.
        absent: numbers below `shards` without a shard; default none. Only with `runs`.

    Raises:
        ConfigError: a number out of range, or runs that do not cover the buckets.
    """

    shards: int
    epoch: int = 1
    runs: tuple[tuple[int, int], ...] = ()
    absent: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= BUCKETS:
            raise ConfigError(
                f"shards must be 1 to {BUCKETS}, got {self.shards}", why=f"there are {BUCKETS} buckets"
            )
        if not 1 <= self.epoch < 1 << 32:
            raise ConfigError(f"the epoch of a shard map must be 1 to {2**32 - 1}, got {self.epoch}")
        if not self.runs and not self.absent:
            return
        lengths, owners = [length for _, length in self.runs], {owner for owner, _ in self.runs}
        numbers = {*range(self.shards)}
        covered = sum(lengths) == BUCKETS and min(lengths) > 0
        if not covered or not owners <= {*self.members} or not numbers.issuperset(self.absent):
            raise ConfigError(
                f"the runs of a shard map must give each of {BUCKETS} buckets to a shard",
                where=f"epoch {self.epoch}, {self.shards} shards without {list(self.absent)}",
            )

    @property
    def members(self) -> list[int]:
        """Numbers of the shards, ascending."""
        return sorted({*range(self.shards)}.difference(self.absent))

    @property
    def owners(self) -> Owners:
        """Shard of each bucket, uint16[4096]; ascending in an even split."""
        if not self.runs:
            return (np.arange(BUCKETS) * self.shards // BUCKETS).astype(np.uint16)
        owners, lengths = zip(*self.runs, strict=True)
        return np.repeat(np.array(owners, np.uint16), lengths)

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that differ between maps with different owners or members."""
        return xxh64_hexdigest(self.owners.astype("<u2").tobytes() + np.array(self.members, "<u2").tobytes())

    def buckets(self, shard: int) -> Sequence[int]:
        """Return the buckets of a shard, ascending; a range if they are neighbours."""
        if not self.runs:
            first = -(-shard * BUCKETS // self.shards)
            return range(first, -(-(shard + 1) * BUCKETS // self.shards))
        buckets = np.flatnonzero(self.owners == shard).tolist()
        runs = runs_of(buckets)
        return buckets if len(runs) > 1 else runs[0] if runs else range(0)

    def after(self, owners: Owners, members: Collection[int], *, epoch: int = 0) -> ShardMap:
        """Return the map of the next epoch, or of a later one.

        Args:
            owners: shard of each bucket, uint16[4096].
            members: numbers of all its shards, including shards without buckets.
            epoch: epoch of the map, if it is a later one.
        """
        shards = max(members) + 1
        runs = tuple((int(owner), len(list(same))) for owner, same in groupby(owners.tolist()))
        absent = tuple(shard for shard in range(shards) if shard not in members)
        return ShardMap(shards, max(self.epoch + 1, epoch), runs, absent)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that `from_dict` reads."""
        plain: dict[str, Any] = {"shards": self.shards, "epoch": self.epoch}
        if self.runs:
            runs = [list(run) for run in self.runs]
            plain |= {"runs": runs, "absent": list(self.absent), "digest": self.digest}
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build it from `to_dict` data.

        Raises:
            ConfigError: a value is missing or invalid, or the digest differs.
        """
        runs, absent = data.get("runs", ()), data.get("absent", ())
        made = cls(data.get("shards"), data.get("epoch"), runs, absent)  # type: ignore[arg-type]
        if made.runs and data.get("digest") != made.digest:
            raise ConfigError("the digest of a shard map does not match its owners")
        return made
