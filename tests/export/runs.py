"""Small trained models of every kind, saved; and what a program of theirs takes, made without its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

import satrap
from satrap import models
from satrap.launch.folder.run_folder import RunFolder
from satrap.schema import Schema
from satrap.train import Predictor

OPTIONS: dict[str, dict[str, Any]] = {"two_tower": {"item": ["item", "tags", "price"], "width": 8}}
"""Arguments of models that need some; the others get smaller layers where they have any."""
LABELS = {"esmm": ["clicked", "bought"]}
"""Labels of models that need some."""


def schema_of(labels: Sequence[Any] = ("clicked",)) -> Schema:
    features = {
        "user": satrap.Categorical(dim=8),
        "item": satrap.Categorical(dim=8),
        "tags": satrap.Categorical(dim=8, multi=True, pooling="mean"),
        "price": satrap.Numeric(transform="log1p"),
        "picture": satrap.Vector(dim=3),
    }
    return Schema(list(labels), features)


def frame(count: int = 300, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "user": [f"u{user}" for user in random.integers(0, 30, count)],
            "item": random.integers(0, 40, count),
            "tags": [list(random.integers(0, 9, n)) for n in random.integers(0, 4, count)],
            "price": random.exponential(10, count),
            "picture": [list(random.normal(size=3)) for _ in range(count)],
            "clicked": random.integers(0, 2, count),
            "rating": random.normal(3, 1, count),
            "mood": random.integers(0, 3, count),
        }
    ).assign(bought=lambda rows: rows.clicked * (rows.mood == 0))


def trained(
    folder: Path, name: str = "dnn", schema: Schema | None = None, model: torch.nn.Module | None = None
) -> RunFolder:
    """Train a model for some steps and save it."""
    schema = schema or schema_of(LABELS.get(name, ["clicked"]))
    torch.manual_seed(3)
    if model is None:
        small = {"hidden": [16]} if "hidden" in models.arguments(name) else {}
        model = models.create(name, schema, **(small | OPTIONS.get(name, {})))
    optimizer = satrap.optim.Adagrad(lr=0.5)  # rows and scores far from where they start
    with closing(satrap.Trainer(model, schema, embedding_optimizer=optimizer)) as trainer:
        trainer.fit(satrap.data.read(frame(), schema, batch_size=50), epochs=1)
        trainer.save(str(folder))
    return RunFolder.open(folder)


def inputs_of(
    about: Mapping[str, Any], predictor: Predictor, rows: pd.DataFrame
) -> dict[str, npt.NDArray[np.float32]]:
    """Return what a program takes for some rows: pooled with NumPy, placed as the description says."""
    schema = predictor.schema.without_labels()
    [batch] = satrap.data.read(rows, schema, batch_size=len(rows)).batches()
    made = {}
    for given in about["inputs"]:
        values = np.full((len(rows), given["shape"][1]), np.nan, np.float32)
        for column in given["columns"]:
            place, name = slice(column["start"], column["stop"]), column["feature"]
            if given["name"] == "numeric":
                assert batch.numeric is not None
                values[:, place] = batch.numeric[:, schema.numeric_columns[name]]
                continue
            ids = batch.ids[name]
            offsets = np.arange(len(rows) + 1) if ids.offsets is None else ids.offsets
            for row, (start, stop) in enumerate(pairwise(offsets)):
                found, _ = predictor.exchange.shard.peek(column["table"], ids.values[start:stop])  # type: ignore[attr-defined]
                width = column["stop"] - column["start"]
                assert column["pooling"] == ("mean" if name == "tags" else "one")
                values[row, place] = found.mean(0) if stop > start else np.zeros(width)
        assert not np.isnan(values).any()
        made[given["name"]] = values
    return made
