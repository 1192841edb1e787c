"""SASRec against a loop over histories with PyTorch's own layers, and its training against plain PyTorch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from satrap import models
from satrap.errors import ConfigError
from satrap.models import SASRec
from tests.models.layers.plain import plain
from tests.models.retrieval.histories import SCHEMA, WIDTH, embedded


def made(**options: object) -> SASRec:
    torch.manual_seed(0)
    return SASRec(SCHEMA, layers=2, heads=2, hidden=12, dropout=0.0, **options)  # type: ignore[arg-type]


def by_loop(model: SASRec, events: Tensor) -> Tensor:
    """The vector after the last of some events, float32[events, width]; with PyTorch's own blocks."""
    places = model.places[torch.arange(len(events) - 1, -1, -1)]
    x = (events * math.sqrt(WIDTH) + places)[None]
    hidden = nn.Transformer.generate_square_subsequent_mask(len(events))
    for block in model.blocks:
        x = plain(block)(x, src_mask=hidden)  # type: ignore[arg-type]
    return model.norm(x)[0, -1]  # type: ignore[no-any-return]


def test_vectors_and_gradients_are_those_of_a_loop() -> None:
    model, lengths = made(), [3, 6, 0, 1, 5, 2, 6]
    results = []
    for way in ("model", "loop"):
        batch = embedded(lengths)
        history, genres = (batch.embeddings[name].values for name in ("history", "genres"))  # type: ignore[union-attr]
        rows, at, vectors = history + genres, 0, []
        for length in lengths:
            vectors.append(by_loop(model, rows[at : at + length]) if length else model.nothing)
            at += length
        found = model.tower_vectors("user", batch) if way == "model" else torch.stack(vectors)
        (gradient,) = torch.autograd.grad(found.square().sum(), history)
        results.append((found.detach(), gradient))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_vector_does_not_depend_on_the_batch_or_on_later_events() -> None:
    model, lengths = made().eval(), [4, 2, 6, 1]
    whole = embedded(lengths)
    together = model.tower_vectors("user", whole)
    outputs = model(embedded(lengths, drawn=0)).queries
    torch.testing.assert_close(outputs, together)
    every = made(every_event=True)(embedded([4], drawn=0))
    alone = made()(embedded([4], drawn=0))
    torch.testing.assert_close(every.queries[0], alone.queries[0])


def test_dropout_is_for_training_only() -> None:
    model = models.create("sasrec", SCHEMA, dropout=0.5)
    batch = embedded([4, 2])
    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


def test_bad_arguments_are_errors() -> None:
    with pytest.raises(ConfigError, match="layers must be"):
        made(**{"every_event": False}).__class__(SCHEMA, layers=0)
    with pytest.raises(ConfigError, match="width 8 must be a multiple of heads 3"):
        SASRec(SCHEMA, heads=3)
