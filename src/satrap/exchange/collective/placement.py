"""The placement of rows on ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError
from satrap.exchange.collective.ranks import Ranks
from satrap.exchange.lookup import Bags, LookupRequest
from satrap.exchange.protocol import TableGroup
from satrap.exchange.servers.config import without_tables
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.split import EVERYWHERE, Positions, ShardPart, Splitter
from satrap.schema import Table
from satrap.store import BUCKETS, StoreConfig

PLACEMENTS = ("row_wise", "table_wise", "replicated")
"""Names of placements, in order of preference."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of each table, by the names that recommender systems use.

    - "row_wise": each rank holds the rows of its buckets. Load is even, whatever the sizes of the tables.
    - "table_wise": one rank holds the whole table. Tables are assigned to ranks so that widths add up evenly.
    - "replicated": every rank holds all rows. Rows are never sent; instead, each rank sends the gradients to
      all others, and all take the same steps. For small tables whose ids occur in nearly every batch.

    Results do not depend on the placement, bit for bit, in all number formats. The one exception is a rank
    that pools the rows of its whole table (`CollectiveExchange`): formats other than float32 then round the
    vectors instead of the rows.

    Args:
        default: placement of all tables that are not in `tables`.
        tables: table name -> its placement.
        owners: table-wise table -> the rank that holds it, modulo the number of ranks; default: assigned as
            above.

    Raises:
        ConfigError: an unknown placement, or a negative rank.
    """

    default: str = "row_wise"
    tables: Mapping[str, str] = field(default_factory=dict)
    owners: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for value in (self.default, *self.tables.values()):
            if value not in PLACEMENTS:
                raise ConfigError(f"unknown placement {value!r}", fix=f"use one of {', '.join(PLACEMENTS)}")
        for table, rank in self.owners.items():
            if rank < 0:
                raise ConfigError(f"the owner of table {table!r} must be a rank >= 0, got {rank}")

    def of(self, table: str) -> str:
        """Return the placement of a table."""
        return self.tables.get(table, self.default)

    def check(self, tables: Sequence[Table], store: StoreConfig) -> None:
        """Raise `ConfigError` for unknown tables, and for placements that table limits do not allow."""
        if not tables:
            raise without_tables()
        names = {table.name for table in tables}
        unknown = sorted((set(self.tables) | set(self.owners)) - names)
        if unknown:
            raise ConfigError(
                f"the placement names an unknown table {unknown[0]!r}",
                fix=f"tables: {', '.join(sorted(names)) or 'none'}",
            )
        bounds = dict.fromkeys((t.name for t in tables if t.memory is not None), "its own memory")
        for table, used in (bounds | store.bounds(tables)).items():
            if self.of(table) != "row_wise":
                raise ConfigError(
                    f"{used} requires the placement row_wise",
                    where=f"table {table!r}",
                    why="with other placements, the limit would change results and make replicas differ",
                    fix=f"remove {used}, or set the placement of table {table!r} to row_wise",
                )


class Holders:
    """Splits requests among the ranks that hold the rows.

    Args:
        groups: the table groups.
        placement: placement of their tables.
        ranks: the processes.

    Attributes:
        rank: number of this process.
    """

    def __init__(self, groups: Sequence[TableGroup], placement: Placement, ranks: Ranks) -> None:
        self._groups, self.rank, self._placement = groups, ranks.rank, placement
        self._map = ShardMap(ranks.size)
        self._owner = self._dealt(groups)
        names = [table for group in groups for table in group.tables]
        owners = {table: self._owners(table, EVERYWHERE) for table in names}
        self._all = Splitter(groups, self._map, owners)
        self._one = Splitter(groups, self._map, owners | {t: self._owners(t, self.rank) for t in names})
        copied = [np.array([placement.of(t) == "replicated" for t in g.tables]) for g in groups]
        self._copied = [mask if mask.any() and ranks.size > 1 else None for mask in copied]

    def _dealt(self, groups: Sequence[TableGroup]) -> dict[str, int]:
        """Return the rank of each table-wise table: the widest first, to the least loaded rank."""
        dims = {table: group.dim for group in groups for table in group.tables}
        whole = {t: float(dim) for t, dim in dims.items() if self._placement.of(t) == "table_wise"}
        return deal(whole, self.ranks, self._placement.owners)

    def _owners(self, table: str, replica: int) -> npt.NDArray[np.uint16]:
        match self._placement.of(table):
            case "row_wise":
                return self._map.owners
            case "table_wise":
                return np.full(BUCKETS, self._owner[table], np.uint16)
        return np.full(BUCKETS, replica, np.uint16)

    def parts(self, request: LookupRequest, *, everywhere: bool) -> list[ShardPart]:
        """Return the part of a request for each rank.

        Args:
            request: the ids.
            everywhere: send the ids of replicated tables to every rank; else only to this one.

        Raises:
            StoreError: wrong dtypes or splits.
        """
        parts = (self._all if everywhere else self._one).split(request)
        if not request.bags:
            return [self._part(rank, request.group, part) for rank, part in enumerate(parts)]
        counts = np.diff(request.splits) * request.pooled
        shift = np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int32)
        tables, base = self._groups[request.group].tables, len(request.ids) - int(counts.sum())
        bags: list[list[Bags]] = [[] for _ in parts]
        vectors: list[list[Positions]] = [[] for _ in parts]
        for bag in request.bags:
            owner = self._owner[tables[bag.table]]
            bags[owner].append(bag)
            vectors[owner].append(np.arange(base, base := base + bag.size, dtype=np.int32))
        pooled = []
        for rank, part in enumerate(parts):
            assert part.gradients is not None  # a single rank does not pool
            positions = part.gradients - np.repeat(shift, np.diff(part.splits))
            part = self._part(rank, request.group, replace(part, gradients=positions), request.pooled)
            rows, gradients = (np.concatenate([at, *vectors[rank]]) for at in (part.rows, part.gradients))
            pooled.append(replace(part, rows=rows, gradients=gradients, bags=bags[rank]))
        return pooled

    def _part(self, rank: int, group: int, part: ShardPart, pooled: Mask | None = None) -> ShardPart:
        """Return a part without the rows that have a replica here, and without the rows of pooled tables."""
        if part.gradients is None:
            return part
        single = slice(None) if pooled is None else np.repeat(~pooled, np.diff(part.splits))
        gradients = part.gradients[single]
        copied = self.copied(rank, group, part.splits)
        rows = gradients if copied is None else gradients[~copied[single]]
        return replace(part, rows=rows, gradients=gradients)

    def copied(self, rank: int, group: int, splits: npt.NDArray[np.int64]) -> Mask | None:
        """Return a mask of the ids with replicas, whose rows are not sent; None: no id has any.

        Args:
            rank: the other rank, sender or receiver; for this rank itself, everything counts as sent.
            group: index of the table group.
            splits: int64[tables + 1], of the ids by table.
        """
        copied = self._copied[group]
        return None if copied is None or rank == self.rank else np.repeat(copied, np.diff(splits))

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self._map.shards

    @property
    def whole(self) -> frozenset[str]:
        """The tables that this rank alone holds."""
        return frozenset(table for table, rank in self._owner.items() if rank == self.rank)

    @property
    def buckets(self) -> Sequence[int]:
        """The buckets of this rank, in tables that are not on a single rank."""
        return self._map.buckets(self.rank)

    def held(self, table: str) -> Sequence[int]:
        """Return the buckets of a table that this rank holds."""
        match self._placement.of(table):
            case "row_wise":
                return self.buckets
            case "table_wise":
                return range(BUCKETS if table in self.whole else 0)
        return range(BUCKETS)

    def saved(self, table: str) -> Sequence[int]:
        """Return the buckets of a table that this rank saves: a part of a replicated table."""
        return self.buckets if self._placement.of(table) == "replicated" else self.held(table)

    def counted(self, table: str) -> bool:
        """Return whether this rank's counters of a table count; for replicated tables only rank 0's do."""
        return self._placement.of(table) != "replicated" or self.rank == 0


def deal(loads: Mapping[str, float], ranks: int, given: Mapping[str, int]) -> dict[str, int]:
    """Return a rank for each load: the largest first, to the least loaded rank (Graham, 1969).

    Without `given`, the busiest rank has at most 4/3 of the optimum. Equal loads keep their order.

    Args:
        loads: name -> load.
        ranks: number of ranks.
        given: preset ranks of some names, modulo the number of ranks.
    """
    sums, owners = [0.0] * ranks, dict[str, int]()
    for name in sorted(loads, key=lambda name: -loads[name]):
        owners[name] = given.get(name, sums.index(min(sums))) % ranks
        sums[owners[name]] += loads[name]
    return owners
