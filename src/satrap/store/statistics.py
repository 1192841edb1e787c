"""The counters of a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import chain
from typing import Any


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


def summed(parts: Iterable[Any]) -> Any:
    """Return the sum of trees of counters, name by name.

    Numbers add up, mappings are summed key by key, tuples are joined, and None stands for nothing.
    """
    trees: list[Any] = [part for part in parts if part is not None]
    if len(trees) < 2:
        return trees[0] if trees else None
    first, kind = trees[0], type(trees[0])
    if is_dataclass(kind):
        return kind(**{f.name: summed(getattr(tree, f.name) for tree in trees) for f in fields(kind)})
    if isinstance(first, Mapping):
        names = dict.fromkeys(name for tree in trees for name in tree)
        return {name: summed(tree.get(name) for tree in trees) for name in names}
    return tuple(chain.from_iterable(trees)) if isinstance(first, tuple) else sum(trees)


def merged(parts: Iterable[Statistics]) -> dict[str, Any]:
    """Return the fields of the `Statistics` of several stores of the same tables, summed.

    Load factors are averaged.
    """
    stores = list(parts)
    sums = {f.name: summed(getattr(store, f.name) for store in stores) for f in fields(Statistics)}
    factors = zip(*(store.load_factor for store in stores), strict=True)
    return sums | {"load_factor": tuple(sum(values) / len(values) for values in factors)}
