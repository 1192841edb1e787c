"""BERT4Rec against a loop over histories with PyTorch's own layers; which events training masks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from satrap import models
from satrap.errors import ConfigError
from satrap.models import BERT4Rec
from satrap.pairs import Pairs
from tests.models.retrieval.histories import SCHEMA, WIDTH, by_loop, embedded, stirred, transformed


def made(**options: object) -> BERT4Rec:
    torch.manual_seed(0)
    return stirred(BERT4Rec(SCHEMA, dropout=0.0, **options))  # type: ignore[arg-type]


def outputs(model: BERT4Rec, events: Tensor, masked: list[int]) -> Tensor:
    """The output at each event and at the mask behind them."""
    tokens = events * math.sqrt(WIDTH)
    tokens = torch.stack([model.mask if i in masked else token for i, token in enumerate(tokens)])
    return transformed(model.encoder, torch.cat((tokens, model.mask[None])), causal=False)


def test_vectors_and_gradients_are_those_of_pytorchs_layers() -> None:
    model = made()
    for found, expected in by_loop(model, lambda events: outputs(model, events, [])[-1]):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_training_compares_masked_events_with_themselves() -> None:
    model, batch = made(masked=0.5), embedded([5, 0, 6], drawn=2)
    torch.manual_seed(4)
    masked = torch.rand(11) < 0.5
    torch.manual_seed(4)
    pairs = model(batch)
    assert isinstance(pairs, Pairs)
    places = np.flatnonzero(masked)
    assert 0 < len(places) < 11
    rows = batch.embeddings["history"].values + batch.embeddings["genres"].values  # type: ignore[union-attr]
    of_first, of_third = places[places < 5].tolist(), (places[places >= 5] - 5).tolist()
    first, third = outputs(model, rows[:5], of_first), outputs(model, rows[5:], of_third)
    expected = torch.cat((first[-1:], model.nothing[None], third[-1:], first[of_first], third[of_third]))
    torch.testing.assert_close(pairs.queries, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(pairs.items[3:], rows[places])
    assert batch.source is not None
    np.testing.assert_array_equal(pairs.item_ids[3:], batch.source.ids["history"].values[places])
    np.testing.assert_array_equal(pairs.samples, [0, 1, 2, *[0] * len(of_first), *[2] * len(of_third)])


def test_evaluation_masks_no_event() -> None:
    model, batch = made(masked=0.9).eval(), embedded([5, 6])
    assert torch.equal(model(batch), model(batch))


@pytest.mark.parametrize("masked", [-0.1, 1.0])
def test_bad_shares_are_errors(masked: float) -> None:
    with pytest.raises(ConfigError, match="masked must be >= 0 and < 1"):
        models.create("bert4rec", SCHEMA, masked=masked)
