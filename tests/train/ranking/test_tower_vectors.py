"""Vectors of either tower: their dot products are the scores of the model."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import satrap
from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.schema import Schema
from satrap.train import Predictor
from satrap.train.ranking.tower_vectors import TowerVectors, towers_of
from tests.export.runs import frame, schema_of, trained


class Own(nn.Module):
    """Towers of one's own: rows as they are, two features each side."""

    tower_features = {"user": ("user",), "item": ("item",)}  # noqa: RUF012

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(schema.categorical["user"].dim))

    def tower_vectors(self, tower: str, batch: EmbeddedBatch) -> Tensor:
        return batch[tower] * self.scale if tower == "user" else batch[tower]

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        return (self.tower_vectors("user", batch) * self.tower_vectors("item", batch)).sum(1, keepdim=True)


def test_towers_of_your_own(tmp_path: Path) -> None:
    schema = schema_of()
    trained(tmp_path / "run", schema=schema, model=Own(schema))
    with closing(Predictor.load(str(tmp_path / "run"), Own)) as predictor:
        rows = frame(9, seed=4)
        sides = {}
        for tower in ("user", "item"):
            vectors = TowerVectors(predictor, tower)
            assert list(vectors.schema.features) == [tower]
            [batch] = satrap.data.read(rows, vectors.schema).batches()
            sides[tower] = vectors(batch)
        expected = predictor.predict(satrap.data.read(rows, schema.without_labels()))[:, 0]
        scores = (sides["user"] * sides["item"]).sum(1)
        np.testing.assert_allclose(1 / (1 + np.exp(-scores)), expected, rtol=0, atol=1e-5)
        with pytest.raises(ConfigError, match=r"tower 'items' is unknown\n.*did you mean 'item'"):
            TowerVectors(predictor, "items")


def test_a_model_without_towers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"DNN has no towers\n.*together.*\n.*two_tower"):
        towers_of(satrap.models.DNN(schema_of(), hidden=[4]))
