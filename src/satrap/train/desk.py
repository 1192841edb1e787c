"""What is asked of the shards of a run that trains, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args, runtime_checkable

from satrap.errors import SatrapError
from satrap.exchange.shard_map import ShardMap

Measure = Literal["rows", "bytes", "traffic"]
"""What shards can be balanced by."""
MEASURES: tuple[str, ...] = get_args(Measure)


@dataclass(frozen=True, slots=True)
class Order:
    """What somebody wants of the shards.

    Args:
        id: names it.
        leave: numbers of shards that give all their buckets away and leave.
        join: HOST:PORT of shards that take part from now on, by number.
        epoch: of the map that there will be.
        survey: True: nothing is to move; only tell what each shard has.
        by: what is to be even among the shards: their rows, the bytes of their rows' weights and optimizer
            state, or how often their rows were used lately.
    """

    id: str
    leave: tuple[int, ...] = ()
    join: Mapping[int, str] = field(default_factory=dict)
    epoch: int = 0
    survey: bool = False
    by: Measure = "rows"


@dataclass(frozen=True, slots=True)
class Moved:
    """What has become of an order.

    Args:
        id: of the order.
        map: the map that the shards have now.
        rows, bytes: in each shard, by number.
        carried, carried_bytes: rows that have moved, and the bytes of their ids, weights and state.
        buckets: number of buckets that have moved.
        seconds: the longest pause of training.
        pauses: how often training paused.
        paused: seconds of all pauses together.
        error: why not all rows have moved; None: they have. `map` says whether some have.
        traffic: part of all uses of rows lately, of each shard's rows, by number; empty: there were none.
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
class Desk(Protocol):
    """Where orders come in and answers go; rank 0 uses it, and every worker has one."""

    def order(self) -> Order | None:
        """Return what is asked for, if anything; called between steps, so it must be quick."""

    def answer(self, moved: Moved) -> None:
        """Take the answer to the order."""
