"""Models of the next item: which features they use, and which pairs they return."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap import models
from satrap.batch import EmbeddedBatch, JaggedRows
from satrap.data.catalogue import Catalogue
from satrap.errors import ConfigError
from satrap.models.retrieval.next_item import NextItem
from satrap.pairs import Pairs, TwoTowers
from satrap.schema import Feature
from tests.models.retrieval.histories import EVENT, FEATURES, LONGEST, NAMES, SCHEMA, WIDTH, embedded


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


@pytest.mark.parametrize("name", NAMES)
def test_the_counts_of_items_are_those_of_the_pairs_that_training_compares(name: str) -> None:
    torch.manual_seed(0)
    options: dict[str, object] = {"masked": 0.4} if name == "bert4rec" else {"every_event": True}
    model: Any = models.create(name, SCHEMA, **options)
    rng = np.random.default_rng(0)
    histories = [rng.integers(1, 9, length).tolist() for length in rng.integers(0, LONGEST + 1, 60)]
    rows = {
        **{column: rng.integers(1, 9, 60).tolist() for column in ("user", "movie", "genre")},
        **{column: histories for column in ("history", "genres")},
    }
    data, times = satrap.data.read(rows, SCHEMA, batch_size=60), 200 if name == "bert4rec" else 1
    items = Catalogue.of(data, model.tower_features["item"], model.trained_events)
    [batch] = data.batches()
    batch.candidates = items.draw(0, 0.0, rng)
    vectors: dict[str, Any] = {
        each: torch.zeros(len(ids.values), WIDTH)
        if ids.offsets is None
        else JaggedRows(torch.zeros(len(ids.values), WIDTH), torch.from_numpy(ids.offsets))
        for each, ids in batch.ids.items()
    }
    whole = EmbeddedBatch(batch.size, vectors, torch.zeros(60, 0), source=batch)
    whole.candidates = EmbeddedBatch(
        0, {k: torch.zeros(0, WIDTH) for k in ("movie", "genre")}, torch.zeros(0, 0)
    )
    found = np.zeros(len(items))
    for _ in range(times):
        found += np.bincount(items.find(model(whole).item_ids), minlength=len(items))
    np.testing.assert_allclose(found / times, items.counts, atol=0 if times == 1 else 1.2)


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
