"""Ranks of items among all items, by the vectors of a model with towers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.batch import Batch, EmbeddedBatch, Jagged
from satrap.data import Dataset
from satrap.data.batch_rows import slice_rows, take_jagged, take_rows
from satrap.data.catalogue import Catalogue, of_all_workers
from satrap.errors import ConfigError, DataError
from satrap.metrics.reservoir import mix
from satrap.pairs import TrainedEvents, check_ids_of_items, key_of_items
from satrap.schema import MISSING_ID, Schema
from satrap.settings.ranking import Ranking
from satrap.train.ranking.seen_items import SeenItems
from satrap.train.ranking.tower_vectors import TowerVectors, TrainedModel, towers_of

Ids = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

ROWS = 1 << 13
"""Items whose vectors are computed at once."""

SCORES = 1 << 24
"""Most scores in memory at once, but at least all scores of one sample."""


class RankedItems(NamedTuple):
    """Relevant items with their ranks, arrays [n], see `satrap.metrics.RankingMetrics.update`."""

    queries: Ids
    items: Ids
    ranks: Ints
    tied: Ints


def check_towers(model: torch.nn.Module, schema: Schema, ranking: Ranking) -> None:
    """Raise `ConfigError` unless all items can be ranked.

    The model must have towers, a feature must identify items, and `ranking.exclude` must name items or users.
    """
    of_item = towers_of(model).tower_features["item"]
    key, name = key_of_items(schema, of_item), ranking.exclude
    if name is None:
        return
    shared = schema.table_of(name) == schema.table_of(key)
    if ranking.excludes_seen(schema):
        if shared or name in of_item:
            raise ConfigError(
                f"exclude names feature {name!r}, which describes an item",
                why="a feature of one id names the user, whose items in training rows are left out",
                fix="name the feature of the user, or a feature of several items, such as a history",
            )
    else:
        check_ids_of_items(schema, key, name, "exclude")


def items_of(data: Any, whole: Schema, part: Schema, events: TrainedEvents | None = None) -> Catalogue:
    """Read a data set, the rows of all workers, and return its items.

    Args:
        data: a `Dataset`, or another data set whose batches have the features of an item.
        whole: the features of the batches of another data set.
        part: the features of an item.
        events: of the histories of a `Dataset`; they are also items.

    Raises:
        DataError: no row has an item.
    """
    if isinstance(data, Dataset):
        read = part.replace({name: whole.features[name] for name in (events.items if events else ())})
        return Catalogue.of(data.with_options(schema=read), tuple(part.features), events)
    key, items = key_of_items(part, part.features), None
    for batch in of_all_workers(data).batches():
        ids, first, counts = np.unique(batch.ids[key].values, return_index=True, return_counts=True)
        known = ids != MISSING_ID
        rows_of_items = take_rows(features_of(batch, whole, part), first[known])
        added = Catalogue(key, rows_of_items, counts[known].astype(np.float64))
        items = added if items is None or not len(items) else items.joined(added)
    if items is None or not len(items):
        raise DataError("no row has an item to rank", fix=f"check the column of feature {key!r}")
    return items


def features_of(batch: Batch, whole: Schema, part: Schema) -> Batch:
    """Return the samples of a batch, read with a whole schema, with the features of a part only."""
    numeric = None
    if part.numeric_columns and batch.numeric is not None:
        columns = [batch.numeric[:, whole.numeric_columns[name]] for name in part.numeric_columns]
        numeric = np.concatenate(columns, axis=1)
    return Batch(batch.size, {name: batch.ids[name] for name in part.categorical}, numeric)


class ItemRanking:
    """Ranks the items of samples among all items, by the dot products of the current vectors.

    The vectors of all items are computed when it is made, with lookups that create no rows. With several
    workers, all make one at the same time, of the same items.

    Memory: the vectors of the items, and `SCORES` scores.

    Args:
        predictor: with the model and its rows.
        items: all items.
        ranking: its `exclude`.
        seen: the items of the training rows of each user, if `exclude` names the user.
        worker: number of this worker, for the queries of samples without a group.
    """

    def __init__(
        self,
        predictor: TrainedModel,
        items: Catalogue,
        ranking: Ranking,
        seen: SeenItems | None = None,
        worker: int = 0,
    ) -> None:
        self._model, self._schema, self._items = towers_of(predictor.model), predictor.schema, items
        self._exclude, self._seen, self._next = ranking.exclude, seen, worker << 40
        of_items = TowerVectors(predictor, "item")
        blocks = (slice_rows(items.items, i, min(i + ROWS, len(items))) for i in range(0, len(items), ROWS))
        vectors = np.concatenate([of_items(block) for block in blocks])
        self._vectors = torch.from_numpy(vectors).to(predictor.embeddings.device)

    def ranks(self, batch: Batch, embedded: EmbeddedBatch) -> RankedItems:
        """Return the ranks of the items of samples with label 1, among all items that are not excluded.

        Samples of a group with the same user and the same list are one query; without groups, each sample is
        one. An id that is not among the items ranks last; samples without an id are left out.
        """
        assert batch.labels is not None
        relevant = (batch.labels[:, 0] == 1) & (batch.ids[self._items.key].values != MISSING_ID)
        if batch.label_mask is not None:
            relevant &= batch.label_mask[:, 0]
        samples = np.flatnonzero(relevant)
        ids = batch.ids[self._items.key].values[samples]
        places = self._items.find(ids)
        row, excluded, itself = self._excluded(batch, samples, places)
        with torch.no_grad():
            part = tower_part(embedded, self._schema, self._model.tower_features["user"])
            users = self._model.tower_vectors("user", part).float()
        ranks, tied = self._counted(users[torch.from_numpy(samples).to(users.device)], places, row, excluded)
        return RankedItems(self._queries(batch, samples, ids, itself), ids, ranks, tied)

    def _counted(self, users: Tensor, places: Ints, row: Ints, excluded: Ints) -> tuple[Ints, Ints]:
        """Return ranks and numbers of ties of the items at some places; `row` has `excluded` items."""
        ranks, tied = np.full(len(places), len(self._items) + 1), np.ones(len(places), np.int64)
        size = max(1, SCORES // len(self._items))
        for start in range(0, len(places), size):
            there = np.flatnonzero(places[start : start + size] >= 0) + start
            scores = users[start : start + size] @ self._vectors.T
            inside = (row >= start) & (row < start + size)
            scores[row[inside] - start, excluded[inside]] = -torch.inf
            scores = scores[there - start]
            score = scores.gather(1, torch.from_numpy(places[there])[:, None].to(scores.device))
            # A score that is not a number is not smaller, so it counts against the model.
            ranks[there] = 1 + len(self._items) - (scores <= score).sum(1).cpu().numpy()
            tied[there] = (scores == score).sum(1).clamp(min=1).cpu().numpy()
        return ranks, tied

    def _excluded(
        self, batch: Batch, samples: Ints, places: Ints
    ) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
        """Return (row, place) of each excluded item, and whether the item of each row is among them."""
        itself = np.zeros(len(samples), np.bool_)
        if self._exclude is None:
            return np.empty(0, np.int64), np.empty(0, np.int64), itself
        values, ends = _taken(batch.ids[self._exclude], samples)
        if self._seen is not None:
            values, ends = self._seen(values)
        row = np.repeat(np.arange(len(samples)), np.diff(ends))
        place = self._items.find(values)
        itself[row[place == places[row]]] = True
        chosen = (place >= 0) & (place != places[row])
        return row[chosen], place[chosen], itself & (places >= 0)

    def _queries(self, batch: Batch, samples: Ints, ids: Ids, itself: npt.NDArray[np.bool_]) -> Ids:
        """Return the query of each sample: its group and user, and its item if other samples exclude it."""
        if batch.groups is None:
            self._next += len(samples)
            return np.arange(self._next - len(samples), self._next, dtype=np.uint64)
        names = [*self._model.tower_features["user"], *([self._exclude] if self._exclude else ())]
        keys = mix(batch.groups[samples])
        for name in dict.fromkeys(names):
            if name in batch.ids:
                keys = mix(keys ^ _digest(batch.ids[name], samples))
            elif name in batch.events:
                keys = mix(keys ^ _digest(batch.events[name], samples))
            elif batch.numeric is not None:
                numbers = batch.numeric[samples, self._schema.numeric_columns[name]]
                for column in np.ascontiguousarray(numbers).view(np.uint32).astype(np.uint64).T:
                    keys = mix(keys ^ column)
        return np.where(itself, mix(keys ^ ids), keys)


def tower_part(batch: EmbeddedBatch, schema: Schema, features: Sequence[str]) -> EmbeddedBatch:
    """Return the features of a tower."""
    columns = [batch.numeric[:, part] for name, part in schema.numeric_columns.items() if name in features]
    return EmbeddedBatch(
        batch.size,
        {name: batch.embeddings[name] for name in features if name in batch.embeddings},
        torch.cat(columns, dim=1) if columns else batch.numeric[:, :0],
        source=batch.source,
        events={name: batch.events[name] for name in features if name in batch.events},
    )


def _taken(jagged: Jagged, samples: Ints) -> tuple[npt.NDArray[Any], Ints]:
    """Return the values of some samples, and their offsets."""
    taken = take_jagged(jagged, samples)
    return taken.values, np.arange(len(samples) + 1) if taken.offsets is None else taken.offsets


def _digest(jagged: Jagged, samples: Ints) -> Ids:
    """Return a hash of the values of each sample and of their order."""
    values, ends = _taken(jagged, samples)
    bits = values if values.dtype == np.uint64 else values.view(np.uint32).astype(np.uint64)
    position = np.arange(len(bits)) - np.repeat(ends[:-1], np.diff(ends))
    sums = np.append(np.uint64(0), np.cumsum(mix(bits ^ mix(position.astype(np.uint64))), dtype=np.uint64))
    return sums[ends[1:]] - sums[ends[:-1]]
