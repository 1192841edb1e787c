"""SASRec against a loop over histories with PyTorch's own layers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from satrap import models
from satrap.batch import EmbeddedBatch, JaggedRows
from satrap.errors import ConfigError
from satrap.models import SASRec
from tests.models.retrieval.histories import LENGTHS, SCHEMA, WIDTH, by_loop, embedded, stirred, transformed


def made(**options: object) -> SASRec:
    torch.manual_seed(0)
    return stirred(SASRec(SCHEMA, dropout=0.0, **options))  # type: ignore[arg-type]


def test_vectors_and_gradients_are_those_of_pytorchs_layers() -> None:
    model = made()

    def last(events: Tensor) -> Tensor:
        return transformed(model.encoder, events * math.sqrt(WIDTH), causal=True)[-1]

    for found, expected in by_loop(model, last):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_pairs_of_events_follow_from_earlier_ones() -> None:
    model, batch = made(every_event=True), embedded([4, 0, 3], drawn=2)
    pairs = model(batch)
    rows = batch.embeddings["history"].values + batch.embeddings["genres"].values  # type: ignore[union-attr]
    outputs = transformed(model.encoder, rows[:4] * math.sqrt(WIDTH), causal=True)
    torch.testing.assert_close(pairs.queries[0], outputs[-1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(pairs.queries[3:6], outputs[:-1], atol=1e-5, rtol=1e-4)
    assert pairs.samples.tolist() == [0, 1, 2, 0, 0, 0, 2, 2]


def test_a_vector_does_not_depend_on_the_batch() -> None:
    model = models.create("sasrec", SCHEMA, dropout=0.5).eval()
    together = model.tower_vectors("user", embedded(LENGTHS))  # type: ignore[operator]
    torch.testing.assert_close(model(embedded(LENGTHS, drawn=0)).queries, together)
    whole = embedded(LENGTHS)
    rows = {k: v.samples(1, 2) for k, v in whole.embeddings.items() if isinstance(v, JaggedRows)}
    alone = EmbeddedBatch(1, rows, whole.numeric[:1])
    torch.testing.assert_close(model.tower_vectors("user", alone), together[1:2])  # type: ignore[operator]


@pytest.mark.parametrize(("wrong", "what"), [({"layers": 0}, "layers must be"), ({"heads": 3}, "heads 3")])
def test_bad_arguments_are_errors(wrong: dict[str, int], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        models.create("sasrec", SCHEMA, **wrong)
