"""The counters of a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Counters of one table.

    A lookup probes 1 + second_probes / (hits + misses) buckets on average, at most 2.

    Args:
        rows: current number of rows.
        created: rows created so far.
        evicted: rows lost for lack of room.
        refused: misses that got no row for lack of room.
        second_probes: ids that were not in their first bucket.
        hits: ids looked up that had a row.
        misses: ids looked up that had none.
        unadmitted: misses that were not admitted.
        dropped: gradients of ids without a row.
    """

    rows: int = 0
    created: int = 0
    evicted: int = 0
    refused: int = 0
    second_probes: int = 0
    hits: int = 0
    misses: int = 0
    unadmitted: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class TierStatistics:
    """Counters of a store's tier, a file.

    Args:
        rows: rows that are only in the file.
        bytes: bytes of disk in use.
        index_bytes: bytes of memory that the file's index uses.
        reads, writes: rows read and written.
        prefetched: rows prefetched.
        prefetch_hits: prefetched rows that were then read.
    """

    rows: int = 0
    bytes: int = 0
    index_bytes: int = 0
    reads: int = 0
    writes: int = 0
    prefetched: int = 0
    prefetch_hits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counters of a store.

    Args:
        rows: rows of all tables, including rows in the tier.
        bytes: bytes of memory in use.
        refused: updates refused because a gradient was not finite.
        load_factor: by group, share of the index's entries in use.
        tables: counters of each table by name.
        tier: counters of the tier; None: the store has no tier.
    """

    rows: int = 0
    bytes: int = 0
    refused: int = 0
    load_factor: tuple[float, ...] = ()
    tables: Mapping[str, TableStatistics] = field(default_factory=dict)
    tier: TierStatistics | None = None


Flat = TypeVar("Flat", TableStatistics, TierStatistics)


def total(parts: Iterable[Flat]) -> Flat | None:
    """Return the sums, counter by counter; None without parts."""
    counters = list(parts)
    return type(counters[0])(*map(sum, zip(*map(astuple, counters), strict=True))) if counters else None


def merged(parts: Iterable[Statistics]) -> dict[str, Any]:
    """Return the fields of the `Statistics` of several stores, summed; load factors are averaged."""
    stores = list(parts)
    tables = {name: total(s.tables[name] for s in stores) for name in stores[0].tables}
    factors = list(zip(*(s.load_factor for s in stores), strict=True))
    return {
        **{name: sum(getattr(s, name) for s in stores) for name in ("rows", "bytes", "refused")},
        "load_factor": tuple(sum(values) / len(values) for values in factors),
        "tables": tables,
        "tier": total(s.tier for s in stores if s.tier is not None),
    }
