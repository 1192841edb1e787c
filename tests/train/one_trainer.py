"""A trainer that holds its rows itself, with a small tower or a model of the zoo."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import satrap
from satrap.train import Predictor, Trainer
from tests.train.plain import VOCABULARY, Batches, Tower, grouped, make_batches, make_schema

FEATURES = ("user", "item", "tags")


def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def make_trainer(**arguments: Any) -> Trainer:
    torch.manual_seed(3)
    defaults: dict[str, Any] = {
        "embedding_optimizer": satrap.optim.RowWiseAdagrad(lr=0.05),
        "dense_optimizer": adam,
        "initial_scale": 0.5,
    }
    return Trainer(arguments.pop("model", None) or Tower(), make_schema(), **grouped(**defaults | arguments))


def all_rows(trainer: Trainer, table: str) -> np.ndarray:
    ids = np.arange(VOCABULARY, dtype=np.uint64)
    return trainer.exchange.shard.peek(table, ids)[0]


TEST = Batches(make_batches(9, seed=5))


def make_zoo_trainer(**arguments: Any) -> Trainer:
    schema = make_schema()
    torch.manual_seed(3)
    model = satrap.models.DCNv2(schema, hidden=[16])
    optimizer = satrap.optim.Adagrad(lr=0.1)
    return Trainer(model, schema, embedding_optimizer=optimizer, dense_optimizer=adam, **grouped(**arguments))


def scores(scorer: Trainer | Predictor) -> np.ndarray:
    return scorer.predict(TEST)
