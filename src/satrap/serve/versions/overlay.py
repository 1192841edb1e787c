"""Changed rows that override a store until they are written to it, for atomic updates of a model."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

import numpy as np

from satrap.exchange.lookup import Array, LookupRequest
from satrap.exchange.states import to_read
from satrap.store import RowChunk, Shard
from satrap.store.arrays import Ids

FOLDED_ROWS = 4096
"""Number of rows written at once, which takes a fraction of a millisecond."""
_NONE: Ids = np.empty(0, np.uint64)


class Overlay:
    """The rows that change between two versions, prepared while the store continues to serve lookups.

    ```python
    overlay = Overlay(store)
    overlay.load(chunk)                     # in any thread
    overlay.remove("user", ids)
    overlay.seal()
    overlay.cover(requests, rows)           # from now on in the thread that reads the store
    while overlay.fold():                   # between two lookups
        ...
    ```

    Args:
        store: the store to which the rows are finally written.
    """

    def __init__(self, store: Shard) -> None:
        self._store, self._rows = store, store.another()
        self._loaded: list[RowChunk] = []
        self._removed: dict[str, Ids] = {}
        self._pieces: deque[tuple[RowChunk, Ids]] = deque()

    @property
    def folding(self) -> bool:
        """Whether some rows have not been written yet."""
        return bool(self._pieces)

    @property
    def bytes(self) -> int:
        """Memory of the changed rows."""
        return self._rows.statistics().bytes

    def load(self, chunk: RowChunk) -> None:
        """Add rows, without their optimizer state; later rows replace earlier rows."""
        self._loaded.append(self._put(chunk))
        if chunk.table in self._removed:
            self._removed[chunk.table] = np.setdiff1d(self._removed[chunk.table], chunk.ids)

    def _put(self, chunk: RowChunk) -> RowChunk:
        read = to_read(self._rows, chunk)
        self._rows.load(chunk.table, read)
        return read

    def remove(self, table: str, ids: Ids) -> None:
        """Reset unique ids, uint64[n], to their initial rows."""
        if not len(ids):
            return
        self._rows.remove(table, ids)
        first = np.empty((len(ids), 0), np.float32)
        put = self._put(RowChunk(table, ids, self._rows.peek(table, ids)[0], first))
        if (
            self._store.ahead.useful
        ):  # a tier cannot remove single rows, so it keeps them with their initial values
            self._loaded.append(put)
        self._removed[table] = np.union1d(self._removed.get(table, np.empty(0, np.uint64)), ids)

    def seal(self) -> None:
        """Cut the rows into pieces for writing; `load` and `remove` must not be called afterwards."""
        removed = {} if self._store.ahead.useful else self._removed
        counts = Counter({table: len(ids) for table, ids in removed.items()})
        for chunk in self._loaded:
            counts[chunk.table] += len(chunk.ids)
        tables = self._rows.statistics().tables
        if all(tables[table].rows == count for table, count in counts.items()):  # no row was added twice
            for chunk in self._loaded:
                for start in range(0, len(chunk.ids), FOLDED_ROWS):
                    self._pieces.append((chunk.pick(slice(start, start + FOLDED_ROWS)), _NONE))
            for table, ids in removed.items():
                empty = self._empty(table)
                for start in range(0, len(ids), FOLDED_ROWS):
                    self._pieces.append((empty, ids[start : start + FOLDED_ROWS]))
        else:
            for chunk in self._rows.snapshot(chunk_rows=FOLDED_ROWS):
                out = np.isin(chunk.ids, removed.get(chunk.table, _NONE))
                self._pieces.append((chunk.pick(~out), chunk.ids[out]))
        self._loaded.clear()

    def _empty(self, table: str) -> RowChunk:
        dim = self._rows.groups[self._rows.group_of(table)[0]].dim
        return RowChunk(table, _NONE, np.empty((0, dim), np.float32), np.empty((0, 0), np.float32))

    def cover(self, requests: Sequence[LookupRequest], rows: Sequence[Array]) -> None:
        """Overwrite rows of a lookup, float32[ids, dim] for each request, with the changed rows."""
        for request, block in zip(requests, rows, strict=True):
            changed, present = self._rows.peek_group(request.group, request.ids, request.splits)
            block[present] = changed[present]

    def fold(self, before: Callable[[str, Ids], object] = lambda _, __: None) -> bool:
        """Write some rows to the store; return whether more rows remain.

        `before` is called with the table and the ids of rows before they change.
        """
        if self._pieces:
            chunk, gone = self._pieces.popleft()
            for ids in (chunk.ids, gone):
                if len(ids):
                    before(chunk.table, ids)
            if len(chunk.ids):
                self._store.load(chunk.table, chunk)
            if len(gone):
                self._store.remove(chunk.table, gone)
        return self.folding

    def close(self) -> None:
        """Free the memory."""
        self._pieces.clear()
        self._loaded.clear()
        self._rows.close()
