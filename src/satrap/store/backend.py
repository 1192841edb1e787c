"""The interfaces of backends, which hold the rows of a table group, and of observers of the rows.

To keep rows elsewhere, implement `RowBackend` in a class, add it to the backends in
`tests/store/backend_contract.py`, and let `GroupStore` open it. `Ram` is the shortest example. `DeviceRows`
keeps rows on a GPU. `Tiered` wraps one of them, as a `FastBackend`, and adds slower memory to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.store.arrays import Bytes, Floats, Found, Ids, Inverse, Offsets, Slots, check_out, check_rows
from satrap.store.memory.directory import Directory
from satrap.store.row_spec import RowSpec
from satrap.store.statistics import TierStatistics

Block = Any
"""float32[n, dim] in the backend's form: a host array, or a tensor on its device."""
FAST = 0
"""Index of the fast part of a backend, where rows are created and trained while there is room."""


class MemoryPart(NamedTuple):
    """One memory of a backend.

    Args:
        directory: the slot of each id in this part.
        read: returns (weights float32[n, dim], state float32[n, width]) of slots; undefined for slot -1.
        live: one bit per slot: the row is here and in no faster part; None: true for all rows.
        folder: folder of the file that holds the rows, in slot order; None: the rows are in memory.
        image: returns copies of all state that decides which row is evicted next; None: none is evicted.
    """

    directory: Directory
    read: Callable[[Inverse], tuple[Floats, Floats]]
    live: Bytes | None = None
    folder: str | None = None
    image: Callable[[], Mapping[str, npt.NDArray[Any]]] | None = None


class PartRows(NamedTuple):
    """Some rows of one part.

    Args:
        part: the part's position in `RowBackend.parts`.
        ids: uint64[n].
        splits: int64[tables + 1]; `ids[splits[t]:splits[t + 1]]` belong to table t.
        slots: int32[n]; -1: no row.
    """

    part: int
    ids: Ids
    splits: Offsets
    slots: Inverse

    def where(self, chosen: Found) -> PartRows:
        """Return the chosen rows, bool[n]."""
        at = np.flatnonzero(chosen)
        return PartRows(self.part, self.ids[at], np.searchsorted(at, self.splits), self.slots[at])


class RowEvents:
    """Events of rows. An observer overrides methods and is added to the `observers` of a backend.

    A method is called once per request or part of a request, and only if there are observers. The methods
    of this class forward the event to the observers.
    """

    def __init__(self) -> None:
        self.observers: WeakSet[RowEvents] = WeakSet()

    def made(self, part: int, slots: Inverse) -> None:
        """Rows were created."""
        for observer in self.observers:
            observer.made(part, slots)

    def used(self, part: int, slots: Inverse) -> None:
        """Rows were looked up, in a backend where uses decide on eviction; slot -1 means no row."""
        for observer in self.observers:
            observer.used(part, slots)

    def changing(self, rows: PartRows) -> None:
        """Slots are about to be written; their contents can still be read.

        A slot may hold an older state of a row that is returning from a faster part.
        """
        for observer in self.observers:
            observer.changing(rows)

    def moved(self, rows: PartRows, to: int, targets: Inverse) -> None:
        """Rows now have slots `targets` of part `to`; they can still be read in their old slots."""
        for observer in self.observers:
            observer.moved(rows, to, targets)

    def gone(self, rows: PartRows) -> None:
        """Rows are being dropped; they can still be read."""
        for observer in self.observers:
            observer.gone(rows)


@dataclass(slots=True)
class Away:
    """Rows of a request that are only in a slower part.

    Args:
        positions: int64[n] in the request, ascending.
        slots: int32[n] in that part.
        records: uint8[n, row bytes], the raw rows; empty if they were not read.
    """

    positions: Offsets
    slots: Inverse
    records: Bytes


@dataclass(slots=True)
class Places:
    """Locations of a request's rows; returned by `find`.

    Args:
        slots: int32[n] in the fast part; -1: not there.
        missing: int64[m], the positions of -1, ascending.
        away: the missing rows that are in a slower part; None: no slower part exists, or no row is missing.
    """

    slots: Inverse
    missing: Offsets
    away: Away | None = None

    @property
    def absent(self) -> Offsets:
        """Positions of the ids that have no row in any part, ascending."""
        if self.away is None:
            return self.missing
        return np.setdiff1d(self.missing, self.away.positions, assume_unique=True)


class RowBackend(RowEvents, ABC):
    """The rows of one table group, and the memory that holds them.

    Calls are serialized. `ids[splits[t]:splits[t + 1]]` belong to table t; ids may repeat unless stated
    otherwise. Ids, splits and positions are host arrays. Slots and rows may be on a device.

    Attributes:
        directory: index of the fast part: maps ids to slots, and chooses the rows to evict.
        parts: the parts of the backend, the fast one first; a new tuple after `clear`.
    """

    directory: Directory
    parts: tuple[MemoryPart, ...]

    def block(self, out: Block | None, rows: int, dim: int) -> Block:
        """Return `out`, or a new block, as float32[rows, dim]; raise `StoreError` if it does not fit."""
        return check_out(out, rows, dim)

    def gradients(self, values: Any, rows: int, dim: int) -> Block:
        """Return gradients as a block float32[rows, dim]; raise `StoreError` for another dtype or shape."""
        return check_rows(values, rows, dim, "gradients")

    @abstractmethod
    def find(self, ids: Ids, splits: Offsets, *, use: bool = False, known: Slots | None = None) -> Places:
        """Return the locations of rows, and read the rows that are in a slower part.

        Args:
            ids, splits: uint64[n], int64[tables + 1].
            use: this starts a request that uses the rows: it counts for eviction, and `create` may follow.
            known: earlier slots of the rows; valid unless the store was cleared or restored since.

        Raises:
            StoreError: a slower part cannot be read, or lacks room for rows that `create` may move there;
                nothing has changed.
        """

    @abstractmethod
    def create(self, ids: Ids, splits: Offsets, places: Places, new: Offsets) -> None:
        """Create rows for ids without one, and move rows to the fast part; updates `places`.

        If room runs out, an id stays without a row, or its row stays in the slower part.

        Args:
            ids, splits, places: of the request, from `find` with `use`.
            new: int64[k], the positions in `places.absent` that get a row, ascending.
        """

    @abstractmethod
    def gather(self, ids: Ids, splits: Offsets, places: Places, out: Block) -> None:
        """Write the weights of rows to float32[n, dim]; an id without a row gets its initial weights."""

    def announce(self, ids: Ids, splits: Offsets, places: Places) -> None:
        """Notify the observers that `step` is about to change the rows."""
        if self.observers:
            self.changing(PartRows(FAST, ids, splits, places.slots))

    @abstractmethod
    def step(self, ids: Ids, places: Places, gradients: Block, lr_scale: float, noise: np.uint64) -> None:
        """Take one optimizer step per id that has a row, in any part.

        Args:
            ids, places: of the request.
            gradients: float32[n, dim].
            lr_scale: factor on the optimizer's lr.
            noise: together with the ids, decides how 16-bit weights are rounded.
        """

    @abstractmethod
    def write(self, ids: Ids, splits: Offsets, weights: Block, state: Block) -> int:
        """Insert or overwrite rows of unique ids; return how many did not fit.

        Args:
            ids, splits: uint64[n], int64[tables + 1].
            weights, state: float32[n, dim], float32[n, width].
        """

    def discard(self, t: int, ids: Ids, slots: Inverse) -> None:
        """Drop rows of table t, uint64[n] with their slots int32[n] in the fast part.

        Raises:
            StoreError: the backend does not support it; nothing has changed.
        """
        raise StoreError("a store with a tier cannot drop individual rows")

    @abstractmethod
    def restore(self, image: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the index from the `image` of the fast part; its rows count as new until written.

        Args:
            image: empty if every row to restore will be written.

        Raises:
            StoreError: the store holds other rows, or the image belongs to another budget.
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget every row and free its memory; counters continue.

        Raises:
            StoreError: the address space cannot hold new, empty memory in addition to the old; nothing has
                changed.
        """

    def close(self) -> None:
        """Release files and devices; memory is freed with the backend."""

    def counters(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return int64[tables] each: rows, created, evicted, refused, second_probes."""
        return self.directory.counters()

    def slower(self) -> TierStatistics | None:
        """Return the counters of the slower part, None without a slower part."""
        return None

    def expect(self, ids: Ids, splits: Offsets) -> Callable[[], object] | None:
        """Note that ids will be looked up soon; return a function that reads their rows, or None.

        The function can be called at any time. None: no row needs to be read.
        """
        return None


class RowRecords(Protocol):
    """Rows that are copied whole, as `satrap.store.memory.slab.Slab` copies them."""

    def records(self, slots: Inverse) -> Bytes:
        """Return the raw rows of slots, uint8[n, row bytes]."""

    def put(self, slots: Inverse, records: Bytes) -> None:
        """Write the result of `records` to slots."""


class FastBackend(RowBackend):
    """A backend that can be in front of slower memory, see `satrap.store.tier.Tiered`.

    Attributes:
        kind: the rows.
        records: the rows as records.
        announces: whether every change of a row is announced to observers.
    """

    kind: RowSpec
    records: RowRecords
    announces = True

    @abstractmethod
    def make(
        self, ids: Ids, splits: Offsets, slots: Inverse, new: Offsets, *, blank: bool = False
    ) -> Iterator[Offsets]:
        """Give new ids a slot and their initial row, after `find` with `use`.

        Args:
            ids, splits: of the request.
            slots: int32[n], the slots of its ids; updated.
            new: int64[k], positions, ascending.
            blank: rows are not written: the caller writes them.

        Yields:
            Positions of ids that got a slot, once for an id that occurs twice. Rows of the next ones may
            evict others; observers are notified of each evicted row.
        """

    @abstractmethod
    def overwrite(self, ids: Ids, slots: Inverse, weights: Floats, state: Floats) -> int:
        """Write rows to slots (-1: none); return the number written."""

    @abstractmethod
    def overlay(self, out: Block, positions: Offsets, weights: Floats) -> None:
        """Write weights float32[k, dim] to positions of a block."""
