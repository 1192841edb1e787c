"""Base of models that predict the next item of a history."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch, JaggedRows
from satrap.errors import ConfigError
from satrap.models.layers.common import Ranker, history_of, one_output
from satrap.models.layers.transformer import groups_by_length, padded
from satrap.pairs import Pairs, key_of_items, pairs_of
from satrap.schema import MISSING_ID, Schema

Whole = npt.NDArray[np.int64]


class NextItem(Ranker):
    """A vector of a history, compared with vectors of items; subclasses encode the history.

    The vector of an item is the sum of the rows of its features. Each feature of the history shares its table
    with one feature of the item, so that an item has the same vector in both. The score is the dot product.
    Features that are neither in the history nor of the item are not used. A history may be empty: its vector
    is then a weight of the network.

    Args:
        schema: one label with one output; one sequence with `max_values`; and for each of its features a
            feature of one value with the same table, the item's.
        every_event: whether training also predicts each event of the history from those before it. For data
            with one row per history; with one row per event, each event would be predicted many times.

    Attributes:
        tower_features: the features of the "item"; all others belong to the "user".
        width: width of the vectors, the dim of the tables.
        longest: most events of a history.

    Raises:
        ConfigError: the schema does not fit.
    """

    def __init__(self, schema: Schema, *, every_event: bool) -> None:
        super().__init__()
        name = type(self).__name__
        self.every_event = every_event
        group, self.longest = history_of(schema, name)
        one_output(schema, name)
        by_table = {
            schema.table_of(key): key
            for key, feature in schema.categorical.items()
            if not feature.multi and not feature.cross
        }
        without = [key for key in group.ids if schema.table_of(key) not in by_table]
        if without:
            raise ConfigError(
                f"{name}: no feature of the item shares the table of {without[0]!r}",
                why="the item to predict and the events of the history are the same items",
                fix=f"set table: {schema.table_of(without[0])} in the feature of the item, or remove "
                f"{without[0]}",
            )
        dims = {schema.categorical[key].dim for key in group.ids}
        if len(dims) > 1:
            raise ConfigError(
                f"{name}: the dims of the history's features differ: {sorted(dims)}",
                why="the vector of an item is the sum of its features' rows",
                fix="give all features of the history the same dim",
            )
        self.history, self.width = group.ids, dims.pop()
        items = [by_table[schema.table_of(key)] for key in group.ids]
        others = tuple(key for key in schema.features if key not in items)
        self.tower_features = {"user": others, "item": tuple(items)}
        self.key = key_of_items(schema, items)
        self.nothing = nn.Parameter(torch.empty(self.width))

    def reset_parameters(self) -> None:
        """Set the initial vector of an empty history; the layers set their own weights."""
        nn.init.zeros_(self.nothing)

    def encoded(self, events: Tensor, lengths: Whole, padding: Tensor) -> Tensor:
        """Return a vector after each event, of that event and earlier ones: [histories, longest, width].

        Args:
            events: of that shape, the rows of the events, with arbitrary rows in the padding at the end.
            lengths: int64[histories], at least 1.
            padding: bool[histories, longest], True for padding.
        """
        raise NotImplementedError

    def forward(self, batch: EmbeddedBatch) -> Tensor | Pairs:
        """Return logits float32[size, 1]; the vectors, if the batch has candidates."""
        items = self.tower_vectors("item", batch)
        events, bounds = self._events(batch)
        outputs = self._outputs(events, bounds)
        queries = self._last(outputs, bounds)
        if batch.candidates is None:
            return (queries * items).sum(1, keepdim=True)
        pairs = pairs_of(batch, self.key, queries, items, self.tower_vectors("item", batch.candidates))
        return self._with_events(pairs, batch, events, outputs, bounds) if self.every_event else pairs

    def tower_vectors(self, tower: str, batch: EmbeddedBatch) -> Tensor:
        """Return the vectors float32[size, width] of "user", from the history, or "item"."""
        if tower == "item":
            return torch.stack([batch[name] for name in self.tower_features["item"]]).sum(0)
        events, bounds = self._events(batch)
        return self._last(self._outputs(events, bounds), bounds)

    def _events(self, batch: EmbeddedBatch) -> tuple[Tensor, Whole]:
        """Return the rows of all events, float32[events, width], and the bounds of the histories."""
        histories = [batch.embeddings[name] for name in self.history]
        rows = [each.values for each in histories if isinstance(each, JaggedRows)]
        return torch.stack(rows).sum(0), histories[0].bounds()  # type: ignore[union-attr]

    def _outputs(self, events: Tensor, bounds: Whole) -> Tensor:
        """Return a vector after each event, float32[events, width]."""
        lengths, results, places = np.diff(bounds), list[Tensor](), list[Whole]()
        for chosen in groups_by_length(lengths):
            starts, counts = bounds[:-1][chosen], lengths[chosen]
            x, padding = padded(events, starts, counts)
            results.append(self.encoded(x, counts, padding)[~padding])
            places.append((starts[:, None] + np.arange(counts.max()))[~padding.cpu().numpy()])
        if not results:
            return events
        order = np.empty(len(events), np.int64)
        order[np.concatenate(places)] = np.arange(len(events))
        return torch.cat(results)[torch.from_numpy(order).to(events.device)]

    def _last(self, outputs: Tensor, bounds: Whole) -> Tensor:
        """Return the vector of each history: the output of its last event."""
        every = torch.cat((self.nothing.unsqueeze(0).to(outputs.dtype), outputs))
        places = np.where(np.diff(bounds) > 0, bounds[1:], 0)
        return every[torch.from_numpy(places).to(outputs.device)]

    def _with_events(
        self, pairs: Pairs, batch: EmbeddedBatch, events: Tensor, outputs: Tensor, bounds: Whole
    ) -> Pairs:
        """Add a pair for each event that follows another one, unless it is missing."""
        assert batch.source is not None
        ids = batch.source.ids[self.history[self.tower_features["item"].index(self.key)]].values
        of_event = np.repeat(np.arange(batch.size), np.diff(bounds))
        after = np.flatnonzero((of_event[1:] == of_event[:-1]) & (ids[1:] != MISSING_ID)) + 1
        places = torch.from_numpy(after).to(events.device)
        return replace(
            pairs,
            queries=torch.cat((pairs.queries, outputs[places - 1])),
            items=torch.cat((pairs.items, events[places])),
            item_ids=np.concatenate((pairs.item_ids, ids[after])),
            samples=np.concatenate((np.arange(batch.size), of_event[after])),
        )
