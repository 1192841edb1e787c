"""Vectors of queries and items, which a model returns for a loss that compares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from satrap.batch import EmbeddedBatch, Ids
from satrap.errors import ConfigError
from satrap.schema import Schema


@dataclass(slots=True)
class Pairs:
    """The vectors of a batch; the score of a query and an item is the dot product of their vectors.

    A model returns it from `forward` if `batch.candidates` is not None.

    Args:
        queries: float32[n, width], such as vectors of users.
        items: float32[n, width], the item that belongs to each query.
        item_ids: uint64[n] on the host, the ids of the items.
        candidates: float32[candidates, width], the vectors of `batch.candidates`.
        candidate_ids: uint64[candidates] on the host.
        samples: int64[n] on the host, the sample of each query, if a sample has several or none; None: query
            i belongs to sample i.
    """

    queries: Tensor
    items: Tensor
    item_ids: Ids
    candidates: Tensor
    candidate_ids: Ids
    samples: npt.NDArray[np.int64] | None = None

    def float(self) -> Pairs:
        """Return the same vectors as float32."""
        return replace(
            self,
            queries=self.queries.float(),
            items=self.items.float(),
            candidates=self.candidates.float(),
        )


def pairs_of(batch: EmbeddedBatch, key: str, queries: Tensor, items: Tensor, candidates: Tensor) -> Pairs:
    """Return the vectors of a batch with one query per sample; `key` is the feature that identifies items."""
    source = batch.source
    assert source is not None
    assert source.candidates is not None
    return Pairs(queries, items, source.ids[key].values, candidates, source.candidates.ids[key].values)


@dataclass(frozen=True, slots=True)
class TrainedEvents:
    """Which events of a history training also predicts.

    Args:
        items: feature of the history -> feature of the item.
        first: whether the first event of a history is one of them; default False.
        share: probability that such an event is predicted in a pass, > 0 and at most 1; default 1.
    """

    items: Mapping[str, str]
    first: bool = False
    share: float = 1.0


@runtime_checkable
class TwoTowers(Protocol):
    """A model with towers: `satrap.models.TwoTower`, or a user model with this attribute and method.

    Its score must increase with the dot product of the two vectors of a sample.

    Attributes:
        tower_features: the features that each tower reads, in the schema's order: "user" and "item".
        trained_events: optional `TrainedEvents`, if training also predicts events of a history. Losses then
            count and draw the items of these events as well.
    """

    tower_features: Mapping[str, Sequence[str]]

    def tower_vectors(self, tower: str, batch: EmbeddedBatch) -> Tensor:
        """Return float32[size, width] of a tower; the batch has only the features of that tower."""


def key_of_items(schema: Schema, features: Iterable[str]) -> str:
    """Return the feature that identifies items: the first of their features with one id per sample.

    Raises `ConfigError` if there is none.
    """
    for name in features:
        feature = schema.categorical.get(name)
        if feature is not None and not feature.multi and not feature.cross:
            return name
    raise ConfigError(
        "no feature identifies the items",
        why="items are compared, counted and drawn by their ids",
        fix="add a categorical feature with one id per item to the item's features, and name it first",
    )


ID_SETTINGS = ("buckets", "vocabulary")
"""Settings, besides the table, that decide the ids of a feature."""


def check_ids_of_items(schema: Schema, key: str, name: str, setting: str) -> None:
    """Raise `ConfigError` unless a categorical feature has the ids of items.

    Args:
        schema: the features.
        key: the feature that identifies items.
        name: the feature.
        setting: the setting that names it, for the error.
    """
    feature, of_items = schema.categorical[name], schema.categorical[key]
    if schema.table_of(name) == schema.table_of(key) and all(
        getattr(feature, each) == getattr(of_items, each) for each in ID_SETTINGS
    ):
        return
    raise ConfigError(
        f"{setting} names feature {name!r}, which does not have the ids of items",
        why=f"{key!r} identifies the items, and both must use the same table, buckets and vocabulary",
        fix=f"set table of feature {name!r} to {schema.table_of(key)}, or remove {setting}",
    )
