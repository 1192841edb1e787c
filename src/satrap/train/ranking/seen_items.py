"""The items of training rows by user, which rankings leave out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch, Ids, Jagged
from satrap.data import Dataset
from satrap.data.batch_rows import take_jagged
from satrap.data.catalogue import counted_rows, of_all_workers, positive
from satrap.pairs import TrainedEvents
from satrap.schema import MISSING_ID

PAIRS = 1 << 20
"""Pairs that are collected before they are compared with the known ones."""

Whole = npt.NDArray[np.int64]


class SeenItems:
    """The different items of the training rows with the same id of a feature, such as the user.

    Memory: 8 bytes for each pair of an id and an item, 16 for each id; while it is made, up to 112 per pair.

    Args:
        ids: uint64[ids], ascending.
        items: of each id, and of a last sample without items.
    """

    def __init__(self, ids: Ids, items: Jagged) -> None:
        self._ids, self._items = ids, items

    @classmethod
    def of(cls, data: Any, by: str, key: str, events: TrainedEvents | None = None) -> SeenItems:
        """Read a data set, the rows of all workers with label 1.

        Args:
            data: a `Dataset`, or another data set whose batches have the features.
            by: the feature of the users; rows without an id do not count.
            key: the feature that identifies items.
            events: of the histories of a `Dataset`; they are also items.
        """
        users, items, waiting = np.empty(0, np.uint64), np.empty(0, np.uint64), list[tuple[Ids, Ids]]()
        count = 0
        for pairs in _pairs(data, by, key, events):
            waiting.append(pairs)
            count += len(pairs[0])
            if count >= max(PAIRS, len(users)):  # so that the work does not grow with the square of the pairs
                users, items = _distinct([(users, items), *waiting])
                waiting, count = [], 0
        users, items = _distinct([(users, items), *waiting])
        ids, firsts = np.unique(users, return_index=True)
        return cls(ids, Jagged(items, np.concatenate((firsts, [len(items), len(items)]))))

    def __call__(self, ids: Ids) -> tuple[Ids, Whole]:
        """Return the items of each id, and their offsets int64[n + 1]; unknown ids have none."""
        places = np.searchsorted(self._ids, ids)
        known = np.append(self._ids, np.uint64(MISSING_ID))[places] == ids
        taken = take_jagged(self._items, np.where(known & (ids != MISSING_ID), places, len(self._ids)))
        assert taken.offsets is not None
        return taken.values, taken.offsets


def _pairs(data: Any, by: str, key: str, events: TrainedEvents | None) -> Iterator[tuple[Ids, Ids]]:
    """Yield the ids of users and of their items, of the rows of all workers."""
    history = None
    if isinstance(data, Dataset):
        if events is not None:
            [history] = [name for name, item in events.items.items() if item == key]
        data = counted_rows(data, dict.fromkeys((by, key, *([history] if history else ()))))
    batch: Batch
    for batch in positive(of_all_workers(data).batches(), key):
        users, items = batch.ids[by].values, batch.ids[key].values
        if history is not None:
            past = batch.ids[history]
            assert past.offsets is not None
            users = np.concatenate((users, np.repeat(users, np.diff(past.offsets))))
            items = np.concatenate((items, past.values))
        known = (users != MISSING_ID) & (items != MISSING_ID)
        yield users[known], items[known]


def _distinct(pairs: list[tuple[Ids, Ids]]) -> tuple[Ids, Ids]:
    """Return the different pairs in ascending order."""
    users, items = (np.concatenate(part) for part in zip(*pairs, strict=True))
    order = np.lexsort((items, users))
    users, items = users[order], items[order]
    new = np.append(True, (np.diff(users) > 0) | (items[1:] != items[:-1]))[: len(users)]
    return users[new], items[new]
