"""Users with histories, items, and a model with towers that ranks them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import satrap
from satrap.schema import Schema
from satrap.train import Ranking, Trainer, TrainingOptions

AT = (1, 5, 20)
ITEM = ("item", "kind", "price")


def schema_of(group: str | None = None, **changes: Any) -> Schema:
    features: dict[str, Any] = {
        "user": satrap.Categorical(dim=4),
        "age": satrap.Numeric(),
        "history": satrap.Categorical(dim=4, multi=True, table="item"),
        "item": satrap.Categorical(dim=4),
        "kind": satrap.Categorical(dim=4),
        "price": satrap.Numeric(),
    }
    return Schema(["liked"], features | changes, group=group)


def frame(count: int = 600, seed: int = 0, items: int = 60) -> pd.DataFrame:
    """Users with a constant history; item 0 is missing, and some rows have an item of their history."""
    random = np.random.default_rng(seed)
    users = random.integers(0, 25, count)
    item = random.integers(0, items, count)
    histories = [list(np.random.default_rng(user).integers(1, items, user % 7)) for user in range(25)]
    return pd.DataFrame(
        {
            "user": users,
            "age": users / 25,
            "history": [histories[user] for user in users],
            "item": [None if one == 0 else str(one) for one in item],
            "kind": item % 4,
            "price": item / items,
            "liked": (random.random(count) < 0.7).astype(int),
        }
    )


TRAIN, TEST = frame(), frame(200, seed=1, items=66)


def trainer_of(schema: Schema, ranking: Ranking | None, model: nn.Module | None = None) -> Trainer:
    torch.manual_seed(1)
    model = model or satrap.models.TwoTower(schema, item=ITEM, hidden=[8], width=6)
    options = TrainingOptions(ranking=ranking)
    optimizer = satrap.optim.Adagrad(lr=0.5)
    return Trainer(model, schema, embedding_optimizer=optimizer, training=options)


def read(rows: pd.DataFrame, schema: Schema, size: int = 64) -> satrap.data.Dataset:
    return satrap.data.read(rows, schema, batch_size=size)
