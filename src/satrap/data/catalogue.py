"""The items of a data set: the features of each, and how often it occurs."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch, Ids, Jagged
from satrap.data.batch_rows import concat_rows, take_rows
from satrap.data.dataset import Dataset
from satrap.errors import DataError
from satrap.pairs import TrainedEvents, key_of_items
from satrap.schema import MISSING_ID, Schema

Floats = npt.NDArray[np.float64]

ROWS = 1 << 17
"""Rows to count at once."""


class Catalogue:
    """Unique items, in ascending order of their ids.

    Memory: the features of each item once, and 16 bytes.

    Args:
        key: the feature that identifies items.
        items: one sample per item, with the features of an item only; its numbers have the columns of the
            whole schema, with zeros for other features.
        counts: float64[items], the pairs of each item that a pass is expected to train: its rows, and events
            of histories.
    """

    def __init__(self, key: str, items: Batch, counts: Floats) -> None:
        self.key, self.items, self.counts = key, items, counts
        self.ids: Ids = items.ids[key].values
        self._sums: dict[float, Floats] = {}

    @classmethod
    def of(cls, data: Dataset, features: Sequence[str], events: TrainedEvents | None = None) -> Catalogue:
        """Read a data set once and return its items; rows without an id, or with label 0, do not count.

        Args:
            data: the rows; the rows of all workers count.
            features: the features of an item, the first one with a single id identifies it. An item has the
                features of its first row.
            events: of the histories of rows that count, with all features of the item; a history's events are
                also items, and count as often as training predicts them.

        Raises:
            DataError: no row has an item.
            ConfigError: no feature identifies items.
        """
        key = key_of_items(data.schema, features)
        rows = counted_rows(data, (*features, *(events.items if events else ())))
        ids, counts, firsts = np.empty(0, np.uint64), np.empty(0), list[Batch]()
        for batch, weights in (_with_events(part, key, events) for part in positive(rows.batches(), key)):
            unique, first, place = np.unique(batch.ids[key].values, return_index=True, return_inverse=True)
            often = np.bincount(place, weights, len(unique))
            places = np.searchsorted(ids, unique)
            known = np.zeros(len(unique), np.bool_)
            inside = places < len(ids)
            known[inside] = ids[places[inside]] == unique[inside]
            counts[places[known]] += often[known]
            firsts.append(take_rows(batch, first[~known]))
            ids = np.insert(ids, places[~known], unique[~known])
            counts = np.insert(counts, places[~known], often[~known])
        if not len(ids):
            labels = rows.schema.labels
            raise DataError(
                f"no row has an item{' and label 1' * bool(labels)}",
                where=rows.source.label,
                fix=f"check the column of feature {key!r}{' and the label' * bool(labels)}",
            )
        items = concat_rows(firsts)
        items = take_rows(items, np.argsort(items.ids[key].values, kind="stable"))
        return cls(key, _widened(items, rows.schema, data.schema), counts)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.ids)

    def find(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Return the position of each id, int64[n]; -1 for unknown ones."""
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, places, -1)

    def joined(self, other: Catalogue) -> Catalogue:
        """Return the items of both; an item of both has the features of this one, and the sum of counts."""
        places = self.find(other.ids)
        new = places < 0
        counts = self.counts.copy()
        counts[places[~new]] += other.counts[~new]
        counts = np.append(counts, other.counts[new])
        items = concat_rows([self.items, take_rows(other.items, np.flatnonzero(new))])
        order = np.argsort(items.ids[self.key].values)
        return Catalogue(self.key, take_rows(items, order), counts[order])

    def shares(self, ids: Ids, power: float = 1.0) -> Floats:
        """Return the probability of each id, float64[n], in draws with this power; 0 for unknown ones."""
        sums = self._cumulative(power)
        places = self.find(ids)
        shares = np.diff(sums, prepend=0.0)[places] / sums[-1]
        return np.where(places < 0, 0.0, shares)

    def draw(self, count: int, power: float, random: np.random.Generator) -> Batch:
        """Return items drawn with replacement, with a probability proportional to counts ** power."""
        if power == 0:
            places = random.integers(len(self), size=count)
        else:
            sums = self._cumulative(power)
            places = np.searchsorted(sums, random.random(count) * sums[-1], side="right")
        return take_rows(self.items, np.minimum(places, len(self) - 1))

    def _cumulative(self, power: float) -> Floats:
        if power not in self._sums:
            self._sums[power] = np.cumsum((self.counts / self.counts.max()) ** power)
        return self._sums[power]


def seeded_by(batch: Batch, key: str, *seeds: int) -> np.random.Generator:
    """Return a generator of random numbers that is a function of seeds and the ids of a batch.

    So a batch that is read again, such as by a resumed run, draws the same items.
    """
    return np.random.default_rng(
        [*(seed % (1 << 64) for seed in seeds), zlib.crc32(batch.ids[key].values.tobytes())]
    )


def of_all_workers(data: Any) -> Any:
    """Return a data set with the rows of all workers, if it can be divided among workers."""
    return data.with_options(worker=0, workers=1) if hasattr(data, "with_options") else data


def counted_rows(data: Dataset, features: Iterable[str]) -> Dataset:
    """Return the rows of all workers with some features, and with the label if it has a column."""
    schema = data.schema
    labels = [label for label in schema.labels[:1] if label.kind == "binary" and not label.implicit]
    part = Schema(labels, {name: schema.features[name] for name in features}, salt=schema.salt)
    whole = {"worker": 0, "workers": 1, "training": False}  # served items have the counts of all rows
    return data.with_options(schema=part, batch_size=ROWS, shuffle=False, **whole)


def counting(batch: Batch, key: str) -> npt.NDArray[np.int64]:
    """Return the positions of rows that have an item and, if there is a label, label 1."""
    keep = batch.ids[key].values != MISSING_ID
    if batch.labels is not None:
        keep &= batch.labels[:, 0] > 0
        if batch.label_mask is not None:
            keep &= batch.label_mask[:, 0]
    return np.flatnonzero(keep)


def positive(batches: Iterable[Batch], key: str) -> Iterator[Batch]:
    """Yield the rows that have an item and, if there is a label, label 1; `key` identifies items."""
    for batch in batches:
        yield take_rows(batch, counting(batch, key))


def _with_events(batch: Batch, key: str, events: TrainedEvents | None) -> tuple[Batch, Floats]:
    """Return the items of rows and then, as more rows, the events of their histories; how often each counts.

    Args:
        batch: rows with the features of an item and, with `events`, of a history.
        key: the feature that identifies items; events without an id are left out.
        events: of the histories.
    """
    if events is None:
        return batch, np.ones(batch.size)
    pasts = {item: batch.ids[history] for history, item in events.items.items()}
    known, counts = pasts[key].values != MISSING_ID, np.full(len(pasts[key].values), events.share)
    bounds = pasts[key].offsets
    assert bounds is not None
    if not events.first:
        counts[bounds[:-1][np.diff(bounds) > 0]] = 0
    ids = {
        name: Jagged(np.concatenate((batch.ids[name].values, past.values[known])))
        for name, past in pasts.items()
    }
    return Batch(len(ids[key].values), ids), np.concatenate((np.ones(batch.size), counts[known]))


def _widened(items: Batch, part: Schema, whole: Schema) -> Batch:
    """Return items whose numbers are in the columns of the whole schema, without labels."""
    numeric = np.zeros((items.size, whole.numeric_width), np.float32) if whole.numeric_width else None
    for name, columns in part.numeric_columns.items():
        if numeric is not None and items.numeric is not None:
            numeric[:, whole.numeric_columns[name]] = items.numeric[:, columns]
    return Batch(items.size, items.ids, numeric)
