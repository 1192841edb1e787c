"""What stores need besides their rows to go on exactly, from any number of them to any other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.store import Chunk, Shard

State = Mapping[str, npt.NDArray[Any]]
_SHARD = re.compile(r"shard(\d+)\.(.*)")


def state_of(store: Shard) -> dict[str, npt.NDArray[Any]]:
    """Return, by name, what a store needs besides its rows."""
    return {f"{g.index}.{k}": v for g in store.groups for k, v in g.state().items()}


def take_state(store: Shard, state: State) -> None:
    """Give a store what `state_of` returned.

    Raises:
        StoreError: it is of a store with other tables.
    """
    for group in store.groups:
        prefix = f"{group.index}."
        own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        try:
            if own:
                group.restore(own)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise StoreError(f"the state of group {group.index} does not fit: {error}") from error


def load_rows(store: Shard, chunks: Iterable[Chunk]) -> tuple[int, bool]:
    """Load rows; return how many, and whether the store holds just these now."""
    before, rows = _evicted(store), 0
    for chunk in chunks:
        store.load(chunk.table, chunk)
        rows += len(chunk.ids)
    return rows, store.statistics()["rows"] == rows and _evicted(store) == before


def _evicted(store: Shard) -> int:
    return sum(table["evicted"] for table in store.statistics()["tables"].values())


def joined(states: Sequence[State]) -> dict[str, npt.NDArray[Any]]:
    """Return the states of several shards as one, by names that tell them apart."""
    return {f"shard{s}.{k}": v for s, state in enumerate(states) for k, v in state.items()}


def spread(state: State, shards: int) -> list[dict[str, npt.NDArray[Any]]]:
    """Return the state for each of so many stores, from that of any number.

    From another number only the counters of requests are taken, the largest of each: they decide the rounding
    of 16-bit rows and the order of eviction, and shards that serve the same steps have equal ones.

    Args:
        state: of one process (`state_of`) or of shards (`joined`).
        shards: how many there are now.
    """
    found: dict[int, dict[str, npt.NDArray[Any]]] = {}
    for name, array in state.items():
        match = _SHARD.fullmatch(name)
        shard, key = (int(match[1]), match[2]) if match else (0, name)
        found.setdefault(shard, {})[key] = array
    if len(found) == shards:
        return [found[s] for s in range(shards)]
    counts: dict[str, npt.NDArray[Any]] = {}
    for part in found.values():
        for key, array in part.items():
            if key.endswith(".counts") and key.count(".") == 1:
                counts[key] = np.maximum(counts[key], array) if key in counts else array
    return [dict(counts) for _ in range(shards)]
