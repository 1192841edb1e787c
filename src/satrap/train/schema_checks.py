"""Checks that a model and data fit the schema of a trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from satrap.batch import Batch
from satrap.errors import ConfigError, DataError
from satrap.models.layers.common import Ranker
from satrap.runtime.user_code import is_blamed
from satrap.schema import Categorical, Feature, Numeric, Schema

_READ: dict[type[Feature], tuple[str, ...]] = {
    Categorical: ("multi", "buckets", "boundaries", "vocabulary", "time", "max_values", "keep", "sequence"),
    Numeric: ("transform", "missing", "time", "sequence", "count", "mean_label", "counts"),
}
"""Settings that decide the ids and numbers of a feature; a vector has its width."""

_SEEN: dict[type[Feature], tuple[str, ...]] = {
    Categorical: ("dim", "pooling", "multi", "sequence"),
    Numeric: ("sequence",),
}
"""Settings that decide a model's input from a feature."""

_IDS = ("cross", "boundaries", "buckets", "vocabulary", "time")
"""Settings that decide which row a value of a categorical feature has."""

_TARGET = ("name", "kind", "positive", "threshold", "classes")
"""Settings that decide the numbers of a label."""


def check_made_for(model: nn.Module, schema: Schema) -> None:
    """Raise `ConfigError` if a model of `satrap.models` was built for other features or outputs."""
    other = model.schema if isinstance(model, Ranker) else None
    if other is None:
        return
    what = _difference(other, schema, _SEEN)
    if what is None and list(other.features) != list(schema.features):
        extra = [name for name in schema.features if name not in other.features]
        what = f"the model has no feature {extra[0]!r}" if extra else "its features are in another order"
    if what is None and other.outputs != schema.outputs:
        what = f"the model has {other.outputs} outputs, but the labels of the trainer need {schema.outputs}"
    if what is not None:
        raise ConfigError(
            f"the model was built for another schema: {what}",
            fix="build the model and the trainer with the same schema",
        )


def check_data(data: object, schema: Schema, *, labels: bool) -> None:
    """Raise `ConfigError` if a data set is read with other features than a schema, or other needed labels.

    A user's own data source has no schema; see `check_batch`.
    """
    other = getattr(data, "schema", None)
    if not isinstance(other, Schema):
        return
    what = _difference(schema, other, _READ)
    if what is None and schema.salt != other.salt:
        what = f"the data's salt is {other.salt}, the trainer's is {schema.salt}"
    if what is None and labels and _targets(schema) != _targets(other):
        what = (
            f"the data's labels are {list(other.label_names)}, the trainer's are {list(schema.label_names)}"
        )
        if other.label_names == schema.label_names:
            what = "the label columns are converted to other targets"
    if what is not None:
        raise ConfigError(
            f"the data is read with another schema: {what}",
            why="ids and numbers would have another meaning",
            fix="read the data with the trainer's schema: data.with_options(schema=trainer.schema)",
        )


def check_training(data: object, schema: Schema) -> None:
    """Raise `ConfigError` for a `Dataset` from which mean labels would contain the row's own label."""
    means = [name for name, feature in schema.numeric.items() if feature.mean_label is not None]
    settings = getattr(data, "settings", None)
    if means and getattr(settings, "training", True) is False:
        raise ConfigError(
            f"feature {means[0]!r}: the training rows are not read as training rows",
            why="mean_label of a row would contain the row's own label",
            fix="read them with data.with_options(training=True)",
        )


def _targets(schema: Schema) -> list[Any]:
    return [[getattr(label, key) for key in _TARGET] for label in schema.labels]


def _difference(needed: Schema, there: Schema, settings: dict[type[Feature], tuple[str, ...]]) -> str | None:
    """Describe the first feature that one schema needs and the other lacks or defines differently."""
    for name, feature in needed.features.items():
        other = there.features.get(name)
        if other is None:
            return f"feature {name!r} is missing"
        if type(other) is not type(feature):
            kinds = type(other).__name__, type(feature).__name__
            return f"feature {name!r} is {kinds[0]} in one and {kinds[1]} in the other"
        for key in settings.get(type(feature), ("dim",)):
            theirs, ours = getattr(other, key), getattr(feature, key)
            if theirs != ours:
                return f"{key} of feature {name!r} is {theirs!r} in one and {ours!r} in the other"
    return None


def feature_changes(before: Schema, now: Schema) -> dict[str, str]:
    """Return feature -> "new", "dropped", or its settings that changed; also whether the order changed."""
    changes = {name: "dropped" for name in before.features if name not in now.features}
    for name, feature in now.features.items():
        other = before.features.get(name)
        keys = [*_READ.get(type(feature), ("dim",)), *_SEEN.get(type(feature), ())]
        if other is None:
            changes[name] = "new"
        elif type(other) is not type(feature):
            changes[name] = f"{type(other).__name__} there, {type(feature).__name__} here"
        elif keys := [key for key in dict.fromkeys(keys) if getattr(other, key) != getattr(feature, key)]:
            changes[name] = f"other {', '.join(keys)}"
    shared = [name for name in now.features if name in before.features]
    if shared != [name for name in before.features if name in now.features]:
        changes["all"] = "in another order, so weights of the first layer belong to other features"
    return changes


def other_ids(before: Schema, now: Schema, table: str) -> str | None:
    """Return why ids of a table mean other values in another schema, in words; None if they do not."""
    shared = [name for name in now.categorical if now.table_of(name) == table and name in before.categorical]
    if table not in map(before.table_of, before.categorical):
        return "new"
    if before.salt != now.salt:
        return "another salt"
    for name in shared:
        for key in _IDS:
            if getattr(before.categorical[name], key) != getattr(now.categorical[name], key):
                return f"other {key} of feature {name}"
    return None


def a_batch(given: object) -> Batch:
    """Return a value that data yielded; raise `DataError` if it is not a batch."""
    if not isinstance(given, Batch):
        raise DataError(f"batches must be satrap.Batch, got a value of type {type(given).__name__}")
    return given


def check_batch(batch: object, schema: Schema) -> None:
    """Raise `DataError` if a value is not a batch, or lacks a feature of a schema."""
    batch = a_batch(batch)
    missing = [name for name in schema.categorical if name not in batch.ids]
    missing += [name for name, n in schema.numeric.items() if n.sequence and name not in batch.events]
    if missing:
        raise DataError(
            f"a batch has no feature {missing[0]!r}",
            why="the model needs every feature of the schema",
            fix=f"give Batch.ids, or for numbers of a sequence Batch.events, an entry {missing[0]!r}",
        )
    width = 0 if batch.numeric is None else batch.numeric.shape[-1]
    if width != schema.numeric_width:
        raise DataError(
            f"a batch has {width} columns of numbers, but the schema has {schema.numeric_width}",
            fix="give Batch.numeric float32[size, schema.numeric_width], see Schema.numeric_columns",
        )


@contextmanager
def failing(model: nn.Module, outputs: int) -> Iterator[None]:
    """Turn an error of a model's first forward pass into a `ConfigError`, if the input explains it."""
    try:
        yield
    except (TypeError, AttributeError, KeyError, IndexError, RuntimeError) as error:
        if is_blamed(error):  # the loader of that code names its line
            raise
        if type(error) is RuntimeError and "shape" not in str(error):  # such as out of memory
            raise
        raise ConfigError(
            f"{type(model).__name__} failed on its first batch: {type(error).__name__}: {str(error)[:200]}",
            why=f"forward gets an EmbeddedBatch and must return float32[size, {outputs}]",
            fix="see satrap.Trainer for the requirements of a model, or use one of satrap.models",
        ) from error


def check_labels(batch: Batch, schema: Schema) -> None:
    """Raise `DataError` if a batch has no labels, or other labels than a schema."""
    shape = None if batch.labels is None else batch.labels.shape
    if shape != (batch.size, len(schema.labels)):
        labels = "no labels" if shape is None else f"labels of shape {list(shape)}"
        raise DataError(
            f"a batch of {batch.size} samples has {labels}",
            why="training and evaluation need the labels of every sample",
            fix=f"read the data with labels, {list(schema.label_names)}",
        )
