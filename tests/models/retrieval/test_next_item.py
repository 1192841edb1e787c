"""Models of the next item: which features they use, and which pairs they return."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import satrap
from satrap.batch import JaggedRows
from satrap.errors import ConfigError
from satrap.models.retrieval.next_item import NextItem
from satrap.pairs import Pairs, TwoTowers
from satrap.schema import Feature
from tests.models.retrieval.histories import EVENT, FEATURES, LONGEST, SCHEMA, WIDTH, embedded


class Sums(NextItem):
    """The vector of a history is the sum of its events so far."""

    def __init__(self, schema: satrap.Schema, *, every_event: bool = False) -> None:
        super().__init__(schema, every_event=every_event)
        self.reset_parameters()

    def encoded(self, events: JaggedRows, *, last: bool) -> torch.Tensor:
        bounds = events.bounds().tolist()
        sums = torch.cat([events.values[:0], *(events.values[a:b].cumsum(0) for a, b in pairwise(bounds))])
        return sums[events.offsets[1:] - 1] if last else sums


def made(every_event: bool = False) -> Sums:
    return Sums(SCHEMA, every_event=every_event)


def test_an_item_and_an_event_have_the_same_features() -> None:
    model = made()
    assert isinstance(model, TwoTowers)
    assert model.tower_features == {"user": ("history", "genres", "user"), "item": ("movie", "genre")}
    assert (model.width, model.longest, model.key) == (WIDTH, LONGEST, "movie")
    batch = embedded([2, 0, 5, 1])
    expected = batch["movie"] + batch["genre"]
    torch.testing.assert_close(model.tower_vectors("item", batch), expected)


def test_the_vector_of_a_history_is_its_last_output() -> None:
    model, batch = made(), embedded([2, 0, 5, 1])
    with torch.no_grad():
        model.nothing.fill_(0.5)
    rows = batch.embeddings["history"].values + batch.embeddings["genres"].values  # type: ignore[union-attr]
    bounds = [0, 2, 2, 7, 8]
    expected = torch.stack(
        [rows[a:b].sum(0) if a < b else torch.full((WIDTH,), 0.5) for a, b in pairwise(bounds)]
    )
    found = model.tower_vectors("user", batch)
    torch.testing.assert_close(found, expected)
    logits = model(batch)
    torch.testing.assert_close(logits, (expected * model.tower_vectors("item", batch)).sum(1, keepdim=True))


def test_pairs_of_samples_and_of_events() -> None:
    batch = embedded([2, 0, 3], drawn=4)
    pairs, every = made()(batch), made(every_event=True)(batch)
    assert isinstance(pairs, Pairs)
    assert batch.source is not None
    np.testing.assert_array_equal(pairs.item_ids, batch.source.ids["movie"].values)
    assert pairs.samples is None
    assert pairs.candidates.shape == (4, WIDTH)
    ids = batch.source.ids["history"].values
    np.testing.assert_array_equal(every.item_ids, [*pairs.item_ids, ids[1], ids[3], ids[4]])
    np.testing.assert_array_equal(every.samples, [0, 1, 2, 0, 2, 2])
    rows = batch.embeddings["history"].values + batch.embeddings["genres"].values  # type: ignore[union-attr]
    torch.testing.assert_close(every.queries[3:], torch.stack([rows[0], rows[2], rows[2] + rows[3]]))
    torch.testing.assert_close(every.items[3:], rows[[1, 3, 4]])


def test_a_missing_event_is_no_pair() -> None:
    batch = embedded([3], drawn=0)
    assert batch.source is not None
    batch.source.ids["history"].values[1] = 0
    assert len(made(every_event=True)(batch).item_ids) == 2


def test_histories_may_all_be_empty() -> None:
    assert torch.equal(made().tower_vectors("user", embedded([0, 0])), torch.zeros(2, WIDTH))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"genre": satrap.Categorical(dim=3)}, "dims"),
        (
            {"genres": satrap.Categorical(**EVENT, table="kind")},
            "compares events with a target, but 'genres' has none",
        ),
        (
            {
                "genres": satrap.Categorical(**{**EVENT, "dim": 4}, table="kind"),
                "kind": satrap.Categorical(dim=4),
            },
            "the dims of the history's features differ",
        ),
    ],
)
def test_histories_without_their_item_are_errors(changes: dict[str, Feature], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Sums(satrap.Schema(SCHEMA.labels, {**FEATURES, **changes}))


def test_several_outputs_are_an_error() -> None:
    with pytest.raises(ConfigError, match="Sums has one output"):
        Sums(satrap.Schema(["a", "b"], FEATURES))
