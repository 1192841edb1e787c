"""Settings of a tier, which keeps rows that do not fit in faster memory."""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from satrap.errors import ConfigError
from satrap.retention import Eviction
from satrap.runtime.arguments import Bytes, checked

IN_MEMORY = "memory"
"""The path of a tier in host memory."""


@checked()
@dataclass(frozen=True, slots=True)
class Tier:
    """A file for evicted rows, or host memory behind a GPU. A lookup loads them back into memory.

    ```python
    tier = satrap.store.Tier("/mnt/nvme", 100 << 30)
    shard = satrap.store.Shard(tables, memory=4 << 30, eviction=satrap.store.Eviction("lru"), tier=tier)
    ```

    While all rows fit, results are bit-identical to those with enough memory: a row returns with its
    optimizer state. The eviction policy decides which rows are in memory. If the file is full, an evicted row
    is lost and counted as `evicted`, as without a tier. A row that returned keeps its record in the file.

    The file is unnamed: the system removes it however the process ends. It is not a backup of the rows;
    snapshots include the rows of the tier. Its index is part of the store's memory budget and takes 19 bytes
    per row that fits in the file.

    Args:
        path: folder on a fast disk of the machine that holds the rows. "memory": host memory, behind a GPU
            (`embedding.device`).
        size: largest size on disk, for example 100GiB, divided among shard servers. The index takes 19 bytes
            of `embedding.memory` per row that fits on the disk; behind a GPU, of host memory.

    Raises:
        ConfigError: size < 1, or an empty path.
    """

    path: str
    size: Bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", os.fspath(self.path))
        if not self.path:
            raise ConfigError("a tier needs a path", fix="name a folder on a fast disk")
        if self.size < 1:
            raise ConfigError(f"the size of a tier must be >= 1 byte, got {self.size}")

    @property
    def in_memory(self) -> bool:
        """Whether rows go to host memory."""
        return self.path == IN_MEMORY

    def check(self, memory: int | None, eviction: Eviction | None) -> None:
        """Raise `ConfigError` if a store with these settings cannot use the tier.

        Args:
            memory, eviction: of the store.
        """
        if memory is None:
            raise ConfigError(
                "a tier needs a memory budget",
                why="rows move to the tier when the memory budget is used up, and no budget is set",
                fix="set memory in bytes, or remove the tier",
            )
        if eviction is None or eviction.ttl is not None:
            policy = "no eviction" if eviction is None else "policy ttl"
            raise ConfigError(
                f"a tier cannot be combined with {policy}",
                why="rows must move to the tier when memory is full, and must never be dropped",
                fix="use eviction with policy lru or lfu",
            )
        if self.in_memory:
            return
        try:
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the tier's folder cannot be used: {error}",
                where=self.path,
                fix="give an existing, writable folder",
            ) from error

    def part(self, share: int | Fraction, whole: int | Fraction) -> Tier:
        """Return this tier with `share / whole` of the size, at least 1 byte."""
        return Tier(self.path, max(1, self.size * share // whole))

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments."""
        return asdict(self)
