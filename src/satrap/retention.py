"""Admission and eviction: which new ids get a row, and which rows are evicted when memory is used up."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from satrap.errors import ConfigError
from satrap.runtime.arguments import Bytes, checked

Policy = Literal["lru", "lfu", "ttl"]
AsStore = Literal["store"]
"""Value of a table's setting: use the store's setting."""


@checked()
@dataclass(frozen=True, slots=True)
class Admission:
    """Which new ids get a row.

    ```python
    shard = satrap.store.Shard(tables, admission=satrap.store.Admission(min_count=3))
    ```

    A use is a lookup request that names the id. Until an id is admitted, each lookup reads its deterministic
    initial row, and its gradients are counted as dropped. The counts take `memory` bytes, whatever the number
    of ids. A count is never too low, so an id is admitted with its `min_count`-th use at the latest. A count
    is too high by t or more with probability at most t ** -4 (then the id is admitted early). All counts are
    halved each time memory / 4 uses (the width of the sketch) have been counted. So ids that stay rare are
    forgotten, and the bound always holds.

    Args:
        min_count: number of the lookup that creates an id's row: 1 for the first, 3 for the third.
        probability: probability that a lookup creates the row, from the `min_count`-th lookup on.
        memory: memory for counting lookups in each table group, a power of two; used if `min_count` > 1.

    `min_count` is 1 to 255, and `probability` takes no memory: its result is a pure function of (seed, table,
    id, number of the lookup request), whatever the number of shards.

    Raises:
        ConfigError: a value is outside its range.
    """

    min_count: int = 1
    probability: float = 1.0
    memory: Bytes = 1 << 24

    def __post_init__(self) -> None:
        if not 1 <= self.min_count <= 255:
            raise ConfigError(f"admission: min_count must be in 1..255, got {self.min_count}")
        if not 0 < self.probability <= 1:
            raise ConfigError(f"admission: probability must be in (0, 1], got {self.probability}")
        if self.memory < 64 or self.memory & (self.memory - 1):
            raise ConfigError(f"admission: memory must be a power of two >= 64, got {self.memory}")

    @property
    def open(self) -> bool:
        """True if every id is admitted at once."""
        return self.min_count == 1 and self.probability == 1

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments, the form used in checkpoints."""
        return asdict(self)


@checked()
@dataclass(frozen=True, slots=True)
class Eviction:
    """Which rows leave memory when it is full.

    ```python
    shard = satrap.store.Shard(tables, memory=4 << 30, eviction=satrap.store.Eviction("lru"))
    ```

    A new id replaces the worst of the 10 rows that share its two index buckets. Every 4th new id instead
    replaces the worst of 10 rows under a clock hand that walks over all tables, so a growing table takes rows
    from the others. This needs no list and no order, only 4 bytes per index entry. Choosing among a few
    hashed rows is nearly as good as exact LRU (measured: miss rates within 1 % of all lookups), its time does
    not depend on the number of rows, and unlike SIEVE it works well when popularity drifts.

    A row's optimizer state is evicted with it. An evicted id that is used again starts from its deterministic
    initial row. Rows of the current request are never evicted. An id without room reads its initial row and
    is counted as `refused`; its gradient is counted as `dropped`.

    Args:
        policy: rows to evict. lru: the least recently used rows; lfu: the least frequently used rows; ttl:
            rows not used for `ttl` steps, and as lru when memory is full.
        ttl: for policy ttl: steps without a lookup after which a row is removed. With shard servers, the
            steps of all workers count.

    "lfu" counts up to 4095 uses. A step of `ttl` is one lookup request of the table group; expired rows are
    dropped gradually, within ttl / 4 or 32 further steps, whichever is more.

    Raises:
        ConfigError: the policy is unknown, or ttl is missing, not allowed or < 1.
    """

    policy: Policy = "lru"
    ttl: int | None = None

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise ConfigError(
                f"eviction policy {self.policy!r} is unknown", fix=f"use one of {', '.join(get_args(Policy))}"
            )
        if (self.policy == "ttl") != (self.ttl is not None):
            raise ConfigError(
                f"eviction: policy {self.policy} {'has no' if self.ttl else 'needs'} ttl",
                fix="write eviction: {policy: ttl, ttl: STEPS}",
            )
        if self.ttl is not None and not 1 <= self.ttl < 2**31:
            raise ConfigError(f"eviction: ttl must be 1 to 2147483647 steps, got {self.ttl}")

    def check(self, memory: int | None, where: str = "") -> None:
        """Raise `ConfigError` (with `where`) if this eviction would have no effect with this budget."""
        if memory is None and self.ttl is None:
            raise ConfigError(
                f"eviction with policy {self.policy} needs a memory budget",
                where=where,
                why="rows are evicted when the budget is used up, and no budget is set",
                fix="set memory in bytes, or remove eviction",
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments, the form used in checkpoints."""
        return asdict(self)


def check_own(memory: int | None, where: str) -> None:
    """Raise `ConfigError` (with `where`) unless `memory` is a valid budget of one table."""
    if memory is not None and memory < 1:
        raise ConfigError(f"{where}: memory must be a whole number of bytes >= 1, got {memory!r}")


def own_to_dict(own: Admission | Eviction | AsStore | None) -> dict[str, Any] | AsStore | None:
    """Return a table's admission or eviction setting as plain data."""
    return own if own is None or isinstance(own, str) else own.to_dict()
