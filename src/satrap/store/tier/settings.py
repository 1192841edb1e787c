"""Where rows go that do not fit in memory."""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from satrap.arguments import checked
from satrap.errors import ConfigError
from satrap.retention import Eviction


@checked()
@dataclass(frozen=True, slots=True)
class Tier:
    """Keeps rows that are evicted from memory in a file, and brings them back when they are looked up.

    ```python
    tier = satrap.store.Tier("/mnt/nvme", 100 << 30)
    shard = satrap.store.Shard(tables, memory=4 << 30, eviction=satrap.store.Eviction("lru"), tier=tier)
    ```

    While all rows fit, results are the same as with enough memory, bit for bit: a row comes back with its
    optimizer state. The policy decides which rows are in memory. If the file has no room for a row, the row
    is lost and counted as `evicted`, as without a tier; a row that came back keeps its place in the file.

    The file has no name: the system removes it however the process ends. It is no backup of the rows:
    snapshots include the rows of the tier. Its index is part of the store's memory budget: 19 bytes are set
    aside for each row that the file has room for.

    Args:
        path: an existing folder on a fast disk.
        size: most bytes of the file; the groups of a store share it in the way they share its memory.

    Raises:
        ConfigError: size < 1, or no path.
    """

    path: str
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", os.fspath(self.path))
        if not self.path:
            raise ConfigError("a tier needs a path", fix="name a folder on a fast disk")
        if self.size < 1:
            raise ConfigError(f"the size of a tier must be >= 1 byte, got {self.size}")

    def check(self, memory: int | None, eviction: Eviction | None) -> None:
        """Raise `ConfigError` if the store has nothing to put there, or cannot use it.

        Args:
            memory, eviction: of the store.
        """
        if memory is None:
            raise ConfigError(
                "a tier needs a memory budget",
                why="rows go to it when the budget is used up, and there is none",
                fix="give memory in bytes, or no tier",
            )
        if eviction is None or eviction.ttl is not None:
            policy = "no eviction" if eviction is None else "policy ttl"
            raise ConfigError(
                f"a tier does not go with {policy}",
                why="rows are to leave memory when it is full, and never to be given up",
                fix="use eviction with policy lru or lfu",
            )
        try:
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the tier's folder cannot be used: {error}",
                where=self.path,
                fix="give an existing folder that may be written",
            ) from error

    def part(self, share: int | Fraction, whole: int | Fraction) -> Tier:
        """Return this tier with `share / whole` of the size, at least 1 byte."""
        return Tier(self.path, max(1, self.size * share // whole))

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments."""
        return asdict(self)
