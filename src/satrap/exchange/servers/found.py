"""Where lookups found their rows, kept for the updates that follow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from satrap.store import Slots
from satrap.store.types import Ids, Offsets

LIMIT = 64 << 20
"""Bytes kept for all clients together; the oldest lookups are forgotten, and their rows are found again."""

Found = Sequence[tuple[Ids, Offsets, Slots]]
"""Per table group: the distinct ids of a lookup and their splits, as they came; the slots of their rows."""


class FoundRows:
    """Remembers, for each client, the lookups that wait for their update.

    An update names the ids of its lookup in the same order, so equal ids of equal tables tell which lookup it
    is. Updates come in the order of their lookups: what a match passes over will get no update. Where rows
    moved here after their lookup, there is none; then another one of the same ids will do.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], Found] = OrderedDict()
        self._number, self._bytes = 0, 0

    def keep(self, client: int, found: Found) -> None:
        """Remember a lookup of a client."""
        self._number += 1
        self._kept[client, self._number] = found
        self._bytes += _size(found)
        while self._bytes > LIMIT:
            self._bytes -= _size(self._kept.popitem(last=False)[1])

    def take(self, client: int, updated: Sequence[tuple[int, Ids, Offsets]]) -> Sequence[Slots | None]:
        """Return the slots for an update, None per group if its lookup is not known.

        Args:
            client: who sent the update.
            updated: (table group, ids, splits) of each of its parts.
        """
        own = [key for key in self._kept if key[0] == client]
        for place, key in enumerate(own):
            if _same(self._kept[key], updated):
                slots = [slots for *_, slots in self._kept[key]]
                self._drop(own[: place + 1])
                return slots
        return [None] * len(updated)

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Forget the lookups of clients that are gone."""
        self._drop([key for key in self._kept if gone(key[0])])

    def _drop(self, keys: Sequence[tuple[int, int]]) -> None:
        for key in keys:
            self._bytes -= _size(self._kept.pop(key))


def _size(found: Found) -> int:
    return sum(ids.nbytes + splits.nbytes + slots.numbers.nbytes for ids, splits, slots in found)


def _same(found: Found, updated: Sequence[tuple[int, Ids, Offsets]]) -> bool:
    return len(found) == len(updated) and all(
        slots.group == group and np.array_equal(ids, wanted) and np.array_equal(splits, of)
        for (ids, splits, slots), (group, wanted, of) in zip(found, updated, strict=True)
    )
