"""The state of stores besides their rows, for an exact resume, and how a checkpoint restores it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.store import BUCKETS, RowChunk, Shard

if TYPE_CHECKING:
    from satrap.store.group import GroupStore

State = Mapping[str, npt.NDArray[Any]]
Counts = Mapping[str, Sequence[int]]
"""By table: the updates of its group, and the requests that used the group's rows. So a run may continue
where tables are grouped differently."""
CHUNK_ROWS = 16384
"""Rows of a cut that are read at once."""
COUNTS = "store_counts"
"""Setting of a checkpoint with the `Counts` of its stores."""


def state_of(store: Shard) -> dict[str, npt.NDArray[Any]]:
    """Return the state of a store besides its rows, by name."""
    return {_prefix(g) + k: v for g in store.groups for k, v in g.state().items()}


def _prefix(group: GroupStore) -> str:
    """Return the prefix of names in a group's state: its tables, as other stores have other groups."""
    return f"{json.dumps(group.tables)}."


def take_state(store: Shard, state: State) -> None:
    """Restore state that `state_of` returned, for groups that have the same tables here.

    Raises:
        StoreError: the state does not fit.
    """
    for group in store.groups:
        prefix = _prefix(group)
        values = {name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)}
        try:
            if values:
                group.restore(values)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            tables = ", ".join(group.tables)
            raise StoreError(f"the state of tables {tables} does not fit: {error}") from error


def counts_of(store: Shard) -> dict[str, list[int]]:
    """Return the counters of a store, the part of its state that every store has."""
    return {table: [g.updates, g.directory.step] for g in store.groups for table in g.tables}


def take_counts(store: Shard, counts: Any) -> Callable[[], None]:
    """Return a function that sets the counters to the `counts_of` another store of the same tables.

    Raises:
        StoreError: the counters are invalid, or of other tables.
    """
    by_group: dict[int, tuple[int, int]] = {}
    for group in store.groups:
        match counts.get(group.tables[0]) if isinstance(counts, dict) else None:
            case [int(updates), int(step)] if 0 <= updates < 1 << 63 and 0 <= step < 1 << 32:
                by_group[group.index] = updates, step
            case _:
                raise StoreError(f"the counters of table {group.tables[0]!r} are missing or invalid")

    def take() -> None:
        for group in store.groups:
            group.updates, group.directory.step = by_group[group.index]

    return take


def largest(counts: Iterable[Counts]) -> dict[str, list[int]]:
    """Return the largest of each counter.

    Counters decide the rounding of 16-bit rows and the order of eviction; they are equal in shards that
    served the same steps.
    """
    result: dict[str, list[int]] = {}
    for by_table in counts:
        for table, values in by_table.items():
            result[table] = [max(pair) for pair in zip(result.get(table, values), values, strict=True)]
    return result


def restore(store: Shard, url: str, buckets: Sequence[int] = range(BUCKETS)) -> None:
    """Restore the state of a store without rows from stores of the same fixed buckets, group by group.

    A group that no such store has with the same tables restores only the counters.

    Args:
        store: the store; its rows are loaded afterwards.
        url: URL of the checkpoint.
        buckets: buckets of the store.

    Raises:
        CheckpointError: the checkpoint does not exist, or a file is missing or damaged.
        StoreError: the state does not fit.
    """
    from satrap.checkpoint.chain import open_chain
    from satrap.checkpoint.stores import read_store

    storage, manifest = open_chain(url).members[-1]
    counts: Counts = manifest.settings.get(COUNTS, {})
    state: dict[str, npt.NDArray[Any]] = {}
    for group in store.groups:  # the largest count of its tables
        if rows := [counts[table] for table in group.tables if table in counts]:
            state[f"{_prefix(group)}counts"] = np.array(rows, np.int64).max(axis=0)
    take_state(store, {**state, **read_store(storage, manifest, buckets)})


def held_by(
    store: Shard, buckets: Sequence[int] | Callable[[str], Sequence[int]]
) -> Callable[[str], Sequence[int]]:
    """Return the buckets that a store reads, by table: none of a table that it does not hold."""
    tables = {table for group in store.groups for table in group.tables}
    return lambda table: range(0) if table not in tables else buckets(table) if callable(buckets) else buckets


def to_read(store: Shard, chunk: RowChunk) -> RowChunk:
    """Return rows for a store that will only read them: their optimizer state is zeros."""
    width = store.groups[store.group_of(chunk.table)[0]].plan.width
    return replace(chunk, state=np.zeros((len(chunk.ids), width), np.float32))


def load_rows(store: Shard, chunks: Iterable[RowChunk]) -> tuple[int, bool]:
    """Load rows; return their number, and whether the store now holds exactly these."""
    before, rows = _evicted(store), 0
    for chunk in chunks:
        store.load(chunk.table, chunk)
        rows += len(chunk.ids)
    return rows, store.statistics().rows == rows and _evicted(store) == before


def _evicted(store: Shard) -> int:
    return sum(table.evicted for table in store.statistics().tables.values())
