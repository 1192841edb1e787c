"""Slots that lookups found, kept for the updates that follow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from satrap.exchange.lookup import LookupRequest
from satrap.store import Slots

LIMIT = 64 << 20
"""Bytes kept for all clients together; beyond, the oldest lookups are dropped, and updates search again."""

Found = Sequence[tuple[LookupRequest, Slots]]
"""The requests of a lookup, as received, and the slots of their rows."""


class SlotCache:
    """Keeps, for each client, the slots of the lookups that wait for their update.

    An update names the ids of its lookup in the same order, so equal ids of equal tables identify the lookup.
    Updates come in the order of their lookups: lookups before a match will get no update. If rows moved to
    this shard after their lookup, there is no match; another lookup of the same ids matches as well.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], Found] = OrderedDict()
        self._number, self._bytes = 0, 0

    def keep(self, client: int, found: Found) -> None:
        """Store a lookup of a client."""
        self._number += 1
        self._kept[client, self._number] = found
        self._bytes += _size(found)
        while self._bytes > LIMIT:
            self._bytes -= _size(self._kept.popitem(last=False)[1])

    def take(self, client: int, updated: Sequence[LookupRequest]) -> Sequence[Slots | None]:
        """Return the slots for an update from a client, None per request if its lookup is unknown."""
        keys = [key for key in self._kept if key[0] == client]
        for place, key in enumerate(keys):
            if _same(self._kept[key], updated):
                slots = [slots for _, slots in self._kept[key]]
                self._drop(keys[: place + 1])
                return slots
        return [None] * len(updated)

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Drop the lookups of clients that are gone."""
        self._drop([key for key in self._kept if gone(key[0])])

    def _drop(self, keys: Sequence[tuple[int, int]]) -> None:
        for key in keys:
            self._bytes -= _size(self._kept.pop(key))


def _size(found: Found) -> int:
    return sum(r.ids.nbytes + r.splits.nbytes + slots.numbers.nbytes for r, slots in found)


def _same(found: Found, updated: Sequence[LookupRequest]) -> bool:
    return len(found) == len(updated) and all(
        a.group == b.group and np.array_equal(a.ids, b.ids) and np.array_equal(a.splits, b.splits)
        for (a, _), b in zip(found, updated, strict=True)
    )
