"""GRU4Rec against a loop over histories with `torch.nn.GRU`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from satrap import models
from satrap.errors import ConfigError
from satrap.models import GRU4Rec
from tests.models.retrieval.histories import SCHEMA, WIDTH, by_loop, embedded, stirred


def made(**options: object) -> GRU4Rec:
    torch.manual_seed(0)
    return stirred(GRU4Rec(SCHEMA, hidden=5, dropout=0.0, **options))  # type: ignore[arg-type]


def states(model: GRU4Rec, events: Tensor) -> Tensor:
    """The vector after each event. Our update gate is the part that is new, PyTorch's the part that stays."""
    layer, width = model.encoder.layers[0], 5
    plain = nn.GRU(WIDTH, width, batch_first=True)
    sign = torch.ones(3 * width)
    sign[width : 2 * width] = -1
    weights = {
        f"{kind}_{part}_l0": getattr(layer, f"{kind}_{part}") * (sign[:, None] if kind == "weight" else sign)
        for kind in ("weight", "bias")
        for part in ("ih", "hh")
    }
    outputs, _ = torch.func.functional_call(plain, weights, events[None])
    vectors: Tensor = model.project(outputs[0])
    return vectors


def test_vectors_and_gradients_are_those_of_pytorchs_gru() -> None:
    model = made()
    for found, expected in by_loop(model, lambda events: states(model, events)[-1]):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_pairs_of_events_follow_from_earlier_ones() -> None:
    model, batch = made(every_event=True), embedded([4, 0, 3], drawn=2)
    pairs = model(batch)
    rows = batch.embeddings["history"].values + batch.embeddings["genres"].values  # type: ignore[union-attr]
    expected = states(model, rows[:4])
    torch.testing.assert_close(pairs.queries[0], expected[-1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(pairs.queries[3:6], expected[:-1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("wrong", [{"layers": 0}, {"hidden": 0}])
def test_bad_arguments_are_errors(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must be a whole number"):
        models.create("gru4rec", SCHEMA, **wrong)
