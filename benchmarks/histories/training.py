"""Trains a model on rows with a history, as all comparisons here do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import torch

import satrap
from satrap.schema import Feature
from satrap.train import TrainingOptions


def trained(
    label: satrap.Label,
    name: str,
    features: Mapping[str, Feature],
    options: Mapping[str, Any],
    parts: Sequence[pa.Table],
    *,
    seed: int,
    epochs: int,
    lr: float = 0.05,
    dense_lr: float = 1e-3,
    batch: int = 512,
) -> dict[str, float]:
    """Return the "validation" and "test" AUC of the epoch that is best on the validation rows.

    Rows learn by Adagrad (`lr`), the network by Adam (`dense_lr`), in `sync`.
    """
    schema = satrap.Schema([label], dict(features))
    data = [satrap.data.read(part, schema, batch_size=batch) for part in parts]
    train = data[0].with_options(shuffle=True, seed=seed, buffer_rows=100_000)
    schema = satrap.data.measure(schema, train)
    torch.manual_seed(seed)
    trainer = satrap.Trainer(
        satrap.models.create(name, schema, **options),
        schema,
        embedding_optimizer=satrap.optim.Adagrad(lr=lr),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=dense_lr),
        mode="sync",
        store=satrap.store.StoreConfig(seed=seed),
        training=TrainingOptions(plateau=0.1, patience=2),
    )
    train, validation, test = (one.with_options(schema=schema) for one in (train, *data[1:]))
    trainer.fit(train, validation=validation, epochs=epochs)
    found = {
        part: trainer.evaluate(rows)["auc"] for part, rows in (("validation", validation), ("test", test))
    }
    trainer.close()
    return found
