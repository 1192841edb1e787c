"""LightGBM on the rows of a recipe, to compare with; it is used only if it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.config import Recipe
from satrap.errors import ConfigError
from satrap.launch.datasets import open_part
from satrap.metrics import Metrics
from satrap.schema import Categorical, Feature, Label, Numeric, Schema

ROUNDS, PATIENCE = 1000, 50
"""Most trees, and the trees without improvement on validation rows that end the training."""
MOST_ROWS = 1_000_000
"""Training rows that are read; LightGBM needs them in memory."""
METRICS = {
    "binary": ("auc", "logloss"),
    "regression": ("rmse", "mae", "r2"),
    "multiclass": ("accuracy", "logloss"),
}
"""Kind of label -> the metrics of a baseline."""
_NOTHING = -1e30
"""Stands for a missing number while rows are read."""

Matrix = npt.NDArray[np.float64]
Weights = npt.NDArray[np.float32]


def check_baseline() -> None:
    """Raise `ConfigError` if LightGBM is not installed."""
    if find_spec("lightgbm") is None:
        raise ConfigError(
            "--baseline needs LightGBM, which is not installed",
            fix="pip install lightgbm, or omit --baseline",
        )


def baseline(recipe: Recipe) -> dict[str, float]:
    """Return the `METRICS` of LightGBM for the first label, on the validation rows of a recipe.

    It has its default settings and the loss of the label, and stops early by that loss on the same rows. Its
    inputs are the numbers and the single-valued ids of the recipe; ids are categories. Reads at most
    `MOST_ROWS` training rows.

    Raises:
        ConfigError: LightGBM is not installed, or the recipe has no validation rows.
        DataError: rows cannot be read.
    """
    check_baseline()
    import lightgbm

    whole = recipe.schema()
    label, features = whole.labels[0], _inputs(whole.features)
    schema = Schema([label], features, weight=whole.weight, salt=whole.salt)
    parts = [_rows(recipe, schema, part) for part in ("train", "validation")]
    (train, labels, weights), (held, targets, weights_held) = parts
    categories = [i for i, feature in enumerate(features.values()) if isinstance(feature, Categorical)]
    for column in categories:
        known, codes = np.unique(train[:, column], return_inverse=True)
        places = np.searchsorted(known, held[:, column]).clip(max=len(known) - 1)
        held[:, column] = np.where(known[places] == held[:, column], places, np.nan)
        train[:, column] = codes
    model = lightgbm.train(
        _objective(label, labels)
        | {"verbosity": -1, "num_threads": 1, "seed": recipe.sections.training.seed},
        lightgbm.Dataset(train, labels, weight=weights, categorical_feature=categories),
        ROUNDS,
        valid_sets=[lightgbm.Dataset(held, targets, weight=weights_held)],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    metrics, predictions = Metrics([label]), np.asarray(model.predict(held), np.float32)
    targets = targets[:, None].astype(np.float32)
    metrics.update(targets, predictions.reshape(len(held), -1), weights=weights_held)
    values = metrics.compute()
    return {name: float(f"{values[name]:.5g}") for name in METRICS[label.kind] if np.isfinite(values[name])}


def _objective(label: Label, values: Matrix) -> dict[str, Any]:
    """Return LightGBM's loss for a label with these values, float64[n], in the training rows."""
    if label.kind == "binary":
        return {"objective": "binary"}
    if label.kind == "multiclass":
        return {"objective": "multiclass", "num_class": label.outputs}
    if label.loss == "huber":
        return {"objective": "huber", "alpha": (label.delta or 1.0) * (label.std or values.std() or 1.0)}
    named = {"absolute": "regression_l1", "poisson": "poisson"}
    return {"objective": named.get(label.loss or "squared", "regression")}


def _inputs(features: Any) -> dict[str, Feature]:
    """Return the numbers, without transforms, and the single-valued ids among features, one per column."""
    inputs: dict[str, Feature] = {}
    for name, feature in features.items():
        column = feature.column or name
        if isinstance(feature, Numeric) and not (feature.of_ids or feature.sequence):
            inputs.setdefault(column, Numeric(column=column, time=feature.time, missing=_NOTHING))
        elif isinstance(feature, Categorical) and not (feature.multi or feature.boundaries or feature.cross):
            inputs.setdefault(column, Categorical(dim=1, column=column, time=feature.time))
    return inputs


def _rows(recipe: Recipe, schema: Schema, part: str) -> tuple[Matrix, Matrix, Weights | None]:
    """Return the inputs of a part of the rows, float64[n, features], their labels, float64[n], and weights.

    Rows without the label are left out. Without a weight column, the weights are None.
    """
    rows = open_part(recipe, schema, part)
    if rows is None:
        raise ConfigError(f"--baseline needs {part} rows", fix="set data.split, or omit --baseline")
    parts, labels, weights, size = list[Matrix](), list[Matrix](), list[Weights](), 0
    for batch in rows.with_options(shuffle=False):
        assert batch.labels is not None
        known = np.ones(batch.size, np.bool_) if batch.label_mask is None else batch.label_mask[:, 0] > 0
        numbers = np.empty((batch.size, 0)) if batch.numeric is None else batch.numeric
        columns: dict[str, Any] = {name: numbers[:, at.start] for name, at in schema.numeric_columns.items()}
        # The upper bits of an id, which float64 holds exactly, are as unique as the whole id.
        columns |= {name: ids.values >> np.uint64(11) for name, ids in batch.ids.items()}
        parts.append(np.stack([columns[name] for name in schema.features], 1).astype(np.float64)[known])
        labels.append(batch.labels[known, 0].astype(np.float64))
        if batch.weights is not None:
            weights.append(batch.weights[known])
        size += len(labels[-1])
        if size >= MOST_ROWS:
            break
    matrix = np.concatenate(parts)
    matrix[matrix == np.float64(np.float32(_NOTHING))] = np.nan
    return matrix, np.concatenate(labels), np.concatenate(weights) if weights else None
