"""Vectors of users and items, from the towers of a trained model."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from satrap.batch import Batch
from satrap.embedding import Embeddings, embeddings_of
from satrap.errors import ConfigError, did_you_mean
from satrap.exchange import Exchange
from satrap.pairs import TwoTowers
from satrap.schema import Schema


class TrainedModel(Protocol):
    """A network with its rows, such as a `Predictor`."""

    model: nn.Module
    schema: Schema
    exchange: Exchange
    embeddings: Embeddings


def towers_of(model: nn.Module) -> TwoTowers:
    """Return a model that has towers; raise `ConfigError` for any other."""
    if isinstance(model, TwoTowers):
        return model
    raise ConfigError(
        f"{type(model).__name__} has no towers",
        why="the model scores user and item together, so an item does not have a separate vector",
        fix="train model: {name: two_tower, item: [...]}, or define tower_features and tower_vectors in "
        "your own model",
    )


class TowerVectors:
    """Computes the vectors of one tower of a trained model.

    ```python
    with closing(satrap.train.Predictor.load("runs/x")) as predictor:
        users = TowerVectors(predictor, "user")
        for batch in satrap.data.read("users.parquet", users.schema):
            users(batch)                                       # float32[batch.size, width]
    ```

    Args:
        predictor: with the model and its rows.
        tower: "user" or "item".

    Attributes:
        schema: the features of the tower.
        plan: turns batches of these features into requests for rows.
        embeddings: turns rows into the input of `tower_vectors`.

    Raises:
        ConfigError: the model has no towers, or none of that name.
    """

    def __init__(self, predictor: TrainedModel, tower: str) -> None:
        model, schema = towers_of(predictor.model), predictor.schema
        if tower not in model.tower_features:
            towers = list(model.tower_features)
            raise ConfigError(
                f"tower {tower!r} is unknown", fix=f"{did_you_mean(tower, towers)}towers: {', '.join(towers)}"
            )
        self._model, self._tower, self._exchange = model, tower, predictor.exchange
        features = {name: schema.features[name] for name in model.tower_features[tower]}
        self.schema = Schema((), features, salt=schema.salt)
        used = {self.schema.table_of(name) for name in self.schema.categorical}
        groups = [group for group in predictor.exchange.groups if used.intersection(group.tables)]
        device = predictor.embeddings.device
        self.plan, self.embeddings = embeddings_of(predictor.exchange, self.schema, groups, device)
        predictor.model.eval()

    def __call__(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return float32[batch.size, width] of samples with the features of the tower."""
        ticket = self.plan.ticket(batch)
        rows = self._exchange.lookup(ticket.requests, create=False).result()
        with torch.no_grad():
            embedded = self.embeddings.embed(ticket, self.embeddings.rows(rows))
            vectors = self._model.tower_vectors(self._tower, embedded).float().cpu().numpy()
        return np.ascontiguousarray(vectors)

    def first_column(self) -> str:
        """Return the column of the first categorical feature; raise `ConfigError` if none exists."""
        for name, feature in self.schema.categorical.items():
            if not feature.multi and not feature.cross:
                return feature.column or name
        raise ConfigError(
            f"tower {self._tower} has no categorical feature, so the column of the ids is unknown",
            fix="name the column: --id COLUMN",
        )
