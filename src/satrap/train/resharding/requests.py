"""Resharding requests to a running job, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args, runtime_checkable

from satrap.errors import SatrapError
from satrap.exchange.shard_map import ShardMap

Measure = Literal["rows", "bytes", "traffic"]
"""The quantity by which shards can be balanced."""
MEASURES: tuple[str, ...] = get_args(Measure)


@dataclass(frozen=True, slots=True)
class ReshardRequest:
    """A request to reshard.

    Args:
        id: identifies it.
        leave: numbers of shards that give all their buckets away and leave.
        join: HOST:PORT of shards that join, by number.
        epoch: epoch of the resulting map.
        survey: True: move nothing; only report the contents of each shard.
        by: the quantity to balance among the shards: their rows, the bytes of their rows' weights and
            optimizer state, or the recent uses of their rows.
    """

    id: str
    leave: tuple[int, ...] = ()
    join: Mapping[int, str] = field(default_factory=dict)
    epoch: int = 0
    survey: bool = False
    by: Measure = "rows"


@dataclass(frozen=True, slots=True)
class ReshardResult:
    """The result of an order.

    Args:
        id: id of the order.
        map: the present map of the shards.
        rows, bytes: in each shard, by number.
        carried, carried_bytes: rows that have moved, and the bytes of their ids, weights and state.
        buckets: number of buckets that have moved.
        seconds: the longest pause of training.
        pauses: number of pauses of training.
        paused: seconds of all pauses together.
        error: why some rows have not moved; None: all have. `map` shows whether some have.
        traffic: each shard's fraction of the recent uses of rows, by number; empty: there were none.
    """

    id: str
    map: ShardMap
    rows: Mapping[int, int] = field(default_factory=dict)
    bytes: Mapping[int, int] = field(default_factory=dict)
    carried: int = 0
    carried_bytes: int = 0
    buckets: int = 0
    seconds: float = 0.0
    pauses: int = 0
    paused: float = 0.0
    error: SatrapError | None = None
    traffic: Mapping[int, float] = field(default_factory=dict)


@runtime_checkable
class RequestSource(Protocol):
    """Source of orders and receiver of answers; rank 0 uses it, and every worker has one."""

    def order(self) -> ReshardRequest | None:
        """Return the next order, if any; called between steps, so it must be quick."""

    def answer(self, moved: ReshardResult) -> None:
        """Receive the answer to the order."""
