"""Which rows are evicted when the memory is used up."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from satrap.errors import ConfigError
from satrap.store.kernels import layout

Policy = Literal["lru", "lfu", "ttl"]
_CODES = {"lru": layout.RECENT, "lfu": layout.FREQUENT, "ttl": layout.RECENT}


@dataclass(frozen=True, slots=True)
class Eviction:
    """Gives the row of a rarely used id to a new id, once the memory budget is used up.

    ```python
    shard = satrap.store.Shard(tables, memory=4 << 30, eviction=satrap.store.Eviction("lru"))
    ```

    A new id takes the worst of the 10 rows that share its two index buckets. Every 4th new id instead takes
    the worst of 10 rows under a hand that walks over all tables, so a growing table takes rows from the
    others. This needs no list and no order, only 4 bytes per index entry. The worst of a few rows chosen by a
    hash is nearly as good as exact LRU (measured: miss rates within 1 % of all lookups), the time does not
    depend on the number of rows, and unlike SIEVE it works well when popularity drifts.

    A row's optimizer state is evicted with it. An id that comes back starts from its deterministic initial
    row. Rows of the request being served are never evicted. An id that finds no room reads its initial row,
    and is counted as `refused`; its gradient is counted as `dropped`.

    Args:
        policy: "lru" (default) evicts the row looked up longest ago; "lfu" the row looked up least often
            (counted up to 4095; of equals, the one used longest ago); "ttl" evicts like lru, and also drops
            rows that no lookup has named for `ttl` steps, even when there is room.
        ttl: steps, for "ttl": a step is one lookup request of the table group. Expired rows are dropped
            bit by bit within ttl / 4 or 32 further steps, whichever is more.

    Raises:
        ConfigError: an unknown policy, or a ttl missing, misplaced or < 1.
    """

    policy: Policy = "lru"
    ttl: int | None = None

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise ConfigError(
                f"eviction policy {self.policy!r} is unknown", fix=f"use one of {', '.join(get_args(Policy))}"
            )
        if (self.policy == "ttl") != (self.ttl is not None):
            raise ConfigError("eviction: ttl and the policy ttl belong together", fix="give both or neither")
        if self.ttl is not None and not 1 <= self.ttl < 2**31:
            raise ConfigError(f"eviction: ttl must be 1 to 2147483647 steps, got {self.ttl}")

    @property
    def code(self) -> int:
        """What the kernels note in the index: steps or counts."""
        return _CODES[self.policy]

    def check(self, memory: int | None) -> None:
        """Raise `ConfigError` if it would have no effect with this budget."""
        if memory is None and self.ttl is None:
            raise ConfigError(
                f"eviction with policy {self.policy} needs a memory budget",
                why="rows go when it is used up, and there is none",
                fix="give memory in bytes, or no eviction",
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments, the form used in checkpoints."""
        return asdict(self)
