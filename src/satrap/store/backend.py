"""Where the rows of a table group lie: what a backend does, and how others see what happens to its rows.

To put rows elsewhere, such as the memory of a GPU, write a class that does what `RowBackend` says, add it
to the backends of `tests/store/test_backend.py`, and have `Group` open it. `Ram` is the shortest example;
`Tiered` holds another backend and adds slower memory to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from satrap.store.directory import Directory
from satrap.store.types import Bytes, Floats, Found, Ids, Inverse, Offsets, Slots

Block = Any
"""float32[n, dim] where the backend takes and gives it: a host array, or a tensor of its device."""
Features = tuple[Inverse, int] | None
"""(int32[features * batch], feature after feature: position of each one's id in a request; features)."""
FAST = 0
"""The part of a backend that all rows are made in and trained in, if it has room."""


class Part(NamedTuple):
    """One memory of a backend.

    Args:
        directory: which slot each id has there.
        read: returns (weights float32[n, dim], state float32[n, width]) of slots; rows of -1 are anything.
        live: one bit per slot: the row is here and in no faster part; None: all are.
    """

    directory: Directory
    read: Callable[[Inverse], tuple[Floats, Floats]]
    live: Bytes | None = None


class PartRows(NamedTuple):
    """Some rows of one part.

    Args:
        part: its position in `RowBackend.parts`.
        ids: uint64[n].
        splits: int64[tables + 1]; `ids[splits[t]:splits[t + 1]]` belong to table t.
        slots: int32[n], -1: no row.
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
    """What happens to rows. Whoever wants to see it overrides methods and joins the `observers` of a backend.

    A method is called once for a request, or for a piece of one, and only if somebody observes. As it stands
    here it passes the event on to the observers.
    """

    def __init__(self) -> None:
        self.observers: WeakSet[RowEvents] = WeakSet()

    def made(self, part: int, slots: Inverse) -> None:
        """Rows are new."""
        for observer in self.observers:
            observer.made(part, slots)

    def used(self, part: int, slots: Inverse) -> None:
        """Rows were looked up, in a backend where uses decide which rows go; -1 is none."""
        for observer in self.observers:
            observer.used(part, slots)

    def changing(self, rows: PartRows) -> None:
        """Slots are about to be written; what they hold can still be read.

        That may be an older state of a row which comes back from a faster part.
        """
        for observer in self.observers:
            observer.changing(rows)

    def moved(self, rows: PartRows, to: int, targets: Inverse) -> None:
        """Rows have slots `targets` of part `to` from now on; where they were they can still be read."""
        for observer in self.observers:
            observer.moved(rows, to, targets)

    def gone(self, rows: PartRows) -> None:
        """Rows are given up; they can still be read."""
        for observer in self.observers:
            observer.gone(rows)


@dataclass(slots=True)
class Away:
    """Rows of a request that are in a slower part only.

    Args:
        positions: int64[n] in the request, ascending.
        slots: int32[n] there.
        records: uint8[n, row bytes], the rows as they lie; empty if they were not read.
    """

    positions: Offsets
    slots: Inverse
    records: Bytes


@dataclass(slots=True)
class Places:
    """Where the rows of a request lie; made by `find`.

    Args:
        slots: int32[n] in the fast part; -1: not there.
        missing: int64[m], the positions of -1, ascending.
        away: those of them that are in a slower part; None: there is none, or nothing is missing.
    """

    slots: Inverse
    missing: Offsets
    away: Away | None = None

    @property
    def absent(self) -> Offsets:
        """Positions of the ids that have no row anywhere, ascending."""
        if self.away is None:
            return self.missing
        return np.setdiff1d(self.missing, self.away.positions, assume_unique=True)


class RowBackend(RowEvents, ABC):
    """The rows of one table group, and the memory they lie in.

    Calls come one after another. `ids[splits[t]:splits[t + 1]]` are of table t; an id may come twice unless
    said otherwise. Ids, splits and positions are host arrays. A backend may keep slots and rows on a device.

    Attributes:
        directory: index of the fast part: which id has a row there, and which rows go.
        parts: its memories, the fast one first; another tuple after `clear`.
    """

    directory: Directory
    parts: tuple[Part, ...]

    @abstractmethod
    def find(self, ids: Ids, splits: Offsets, *, use: bool = False, known: Slots | None = None) -> Places:
        """Return where rows are, and read those that are in a slower part.

        Args:
            ids, splits: uint64[n], int64[tables + 1].
            use: a request begins that uses the rows: it counts for eviction, and `create` may follow.
            known: where they were, if nothing was cleared or restored since.

        Raises:
            StoreError: a slower part cannot be read, or has no room for what `create` may move there;
                nothing has changed.
        """

    @abstractmethod
    def create(self, ids: Ids, splits: Offsets, places: Places, new: Offsets) -> None:
        """Make rows for ids without one, and bring those that are away to the fast part; updates `places`.

        Where there is no room an id stays without a row, or away.

        Args:
            ids, splits, places: of the request, which was found with `use`.
            new: int64[k], those of `places.absent` that are to have a row, ascending.
        """

    @abstractmethod
    def gather(
        self, ids: Ids, splits: Offsets, places: Places, out: Block, features: Features = None
    ) -> None:
        """Write the weights of rows to float32[n, dim], without a row what it would start from.

        With `features` they go to float32[batch, features, dim], one id per sample and feature.
        """

    def announce(self, ids: Ids, splits: Offsets, places: Places) -> None:
        """Tell the observers that `step` is about to change the rows."""
        if self.observers:
            self.changing(PartRows(FAST, ids, splits, places.slots))

    @abstractmethod
    def step(self, ids: Ids, places: Places, gradients: Block, lr_scale: float, noise: np.uint64) -> None:
        """Take one optimizer step per id that has a row, wherever it lies.

        Args:
            ids, places: of the request.
            gradients: float32[n, dim].
            lr_scale: factor on the optimizer's lr.
            noise: decides, with the ids, how 16-bit weights are rounded.
        """

    @abstractmethod
    def write(self, ids: Ids, splits: Offsets, weights: Block, state: Block) -> int:
        """Insert or overwrite rows of distinct ids; return how many found no room.

        Args:
            ids, splits: uint64[n], int64[tables + 1].
            weights, state: float32[n, dim], float32[n, width].
        """

    @abstractmethod
    def restore(self, image: Mapping[str, npt.NDArray[Any]]) -> None:
        """Make the index what it was when `image.save` returned this; its rows are as new until written.

        Args:
            image: empty if all rows that are to be restored will be written.

        Raises:
            StoreError: there are other rows here, or it is of another budget.
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget every row and give its memory back; counters go on.

        Raises:
            StoreError: there is no address space for empty memory beside the old; nothing has changed.
        """

    def close(self) -> None:
        """Give files and devices back; memory goes with the backend."""

    def counters(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return int64[tables] each: rows, created, evicted, refused, second_probes."""
        return self.directory.counters()

    def slower(self) -> dict[str, int]:
        """Return the counters of the slower part, see `Cold.statistics`; empty without one."""
        return {}

    def expect(self, ids: Ids, splits: Offsets) -> Callable[[], object] | None:
        """Note that ids will be looked up soon; return what has their rows read, to be called at any time.

        None: nothing need be read.
        """
        return None
