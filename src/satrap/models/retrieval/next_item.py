"""Base of models that predict the next item of a history."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch, JaggedRows
from satrap.errors import ConfigError
from satrap.models.layers.common import Ranker, one_output
from satrap.models.layers.history import TargetedHistory
from satrap.pairs import Pairs, TrainedEvents, key_of_items, pairs_of
from satrap.schema import MISSING_ID, Schema

Whole = npt.NDArray[np.int64]


class NextItem(Ranker, ABC):
    """A vector of a history, compared with vectors of items; subclasses encode the history.

    The vector of an item is the sum of the rows of its features. Each feature of the history shares its table
    with one feature of the item, so that an item has the same vector in both. The score is the dot product.
    Features that are neither in the history nor of the item are not used. A history may be empty: its vector
    is then a weight of the network.

    Args:
        schema: one label with one output; one sequence with `max_values`; and for each of its features a
            feature of the item with the same table, and one id per sample.
        every_event: whether training also predicts events of the history, all but the first.

    Attributes:
        tower_features: the features of the "item"; all others belong to the "user".
        trained_events: which events of the history training also predicts; None: none. Losses then count and
            draw the items of these events as well.
        width: width of the vectors, the dim of the tables.
        longest: most events of a history.

    Raises:
        ConfigError: the schema does not fit.
    """

    needs = ("sequence", "target", "one label")

    def __init__(self, schema: Schema, *, every_event: bool) -> None:
        super().__init__()
        name = type(self).__name__
        one_output(schema, name)
        history = TargetedHistory(schema, name)
        self.pairs, self.longest = history.pairs, history.length
        dims = {schema.categorical[key].dim for key in self.pairs}
        if len(dims) > 1:
            raise ConfigError(
                f"{name}: the dims of the history's features differ: {', '.join(map(str, sorted(dims)))}",
                why="the vector of an item is the sum of the rows of its features",
                fix="give all features of the history the same dim",
            )
        self.width = dims.pop()
        items = tuple(self.pairs.values())
        others = tuple(key for key in schema.features if key not in items)
        self.tower_features = {"user": others, "item": items}
        self.key = key_of_items(schema, items)
        self.trained_events = TrainedEvents(self.pairs) if every_event else None
        self.nothing = nn.Parameter(torch.empty(self.width))

    def reset_parameters(self) -> None:
        """Set the initial vector of an empty history; the layers set their own weights."""
        nn.init.zeros_(self.nothing)

    @abstractmethod
    def encoded(self, events: JaggedRows, *, last: bool) -> Tensor:
        """Return the vector of what an event and earlier ones lead to.

        Args:
            events: float32[n, width] of histories that are not empty.
            last: whether only the last event of each history counts.

        Returns:
            float32[n, width], or float32[histories, width] with `last`.
        """

    def forward(self, batch: EmbeddedBatch) -> Tensor | Pairs:
        """Return logits float32[size, 1]; the vectors, if the batch has candidates."""
        items = self.tower_vectors("item", batch)
        if batch.candidates is None:
            return (self.tower_vectors("user", batch) * items).sum(1, keepdim=True)
        candidates, events = self.tower_vectors("item", batch.candidates), self._events(batch)
        queries, of_events, places = self.trained(_not_empty(events))
        pairs = pairs_of(batch, self.key, self._of_samples(queries, events), items, candidates)
        return _with_events(pairs, self._history_ids(batch), events, of_events, places)

    def trained(self, events: JaggedRows) -> tuple[Tensor, Tensor, Whole]:
        """Return the vectors that training compares, of histories that are not empty.

        An event is predicted from earlier ones, so the encoder must not see later ones.

        Returns:
            The vectors of the histories; vectors that are compared with events of the history, and the
            positions of these events.
        """
        if self.trained_events is None:
            return self.encoded(events, last=True), events.values[:0], np.zeros(0, np.int64)
        outputs, bounds = self.encoded(events, last=False), events.bounds()
        first = np.zeros(len(outputs) + 1, np.bool_)
        first[bounds] = True
        after = np.flatnonzero(~first)
        places = torch.from_numpy(np.concatenate((bounds[1:] - 1, after - 1))).to(outputs.device)
        chosen = outputs.index_select(0, places)
        return chosen[: len(bounds) - 1], chosen[len(bounds) - 1 :], after

    def tower_vectors(self, tower: str, batch: EmbeddedBatch) -> Tensor:
        """Return the vectors float32[size, width] of "user", from the history, or "item"."""
        if tower == "item":
            return torch.stack([batch[name] for name in self.tower_features["item"]]).sum(0)
        events = self._events(batch)
        return self._of_samples(self.encoded(_not_empty(events), last=True), events)

    def _events(self, batch: EmbeddedBatch) -> JaggedRows:
        histories = [batch.embeddings[name] for name in self.pairs]
        rows = [each for each in histories if isinstance(each, JaggedRows)]
        return replace(rows[0], values=torch.stack([each.values for each in rows]).sum(0))

    def _history_ids(self, batch: EmbeddedBatch) -> npt.NDArray[np.uint64]:
        assert batch.source is not None
        [name] = [history for history, item in self.pairs.items() if item == self.key]
        ids: npt.NDArray[np.uint64] = batch.source.ids[name].values
        return ids

    def _of_samples(self, vectors: Tensor, events: JaggedRows) -> Tensor:
        """Return a vector of each sample from the vectors of histories that are not empty."""
        there = np.diff(events.bounds()) > 0
        every = torch.cat((self.nothing.unsqueeze(0).to(vectors.dtype), vectors))
        return every.index_select(0, torch.from_numpy(np.cumsum(there) * there).to(vectors.device))


def _not_empty(events: JaggedRows) -> JaggedRows:
    """Return events without the samples that have none."""
    bounds = events.bounds()
    bounds = bounds[np.append(True, np.diff(bounds) > 0)]
    return JaggedRows(events.values, torch.from_numpy(bounds).to(events.values.device), bounds)


def _with_events(
    pairs: Pairs, ids: npt.NDArray[np.uint64], events: JaggedRows, queries: Tensor, places: Whole
) -> Pairs:
    """Add pairs of queries and events; a missing event is none."""
    real = np.flatnonzero(ids[places] != MISSING_ID)
    if not len(real):
        return pairs
    chosen, device = places[real], events.values.device
    samples = np.repeat(np.arange(len(pairs.item_ids)), np.diff(events.bounds()))
    return replace(
        pairs,
        queries=torch.cat((pairs.queries, queries[torch.from_numpy(real).to(device)])),
        items=torch.cat((pairs.items, events.values[torch.from_numpy(chosen).to(device)])),
        item_ids=np.concatenate((pairs.item_ids, ids[chosen])),
        samples=np.concatenate((np.arange(len(pairs.item_ids)), samples[chosen])),
    )
