"""Whether a model and data go with the schema of a trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from satrap.batch import Batch
from satrap.errors import ConfigError, DataError
from satrap.models.layers import Ranker
from satrap.own_code import is_blamed
from satrap.schema import Categorical, Feature, Numeric, Schema

_READ: dict[type[Feature], tuple[str, ...]] = {
    Categorical: ("multi", "buckets", "boundaries", "vocabulary", "time", "max_values", "keep", "sequence"),
    Numeric: ("transform", "missing", "time", "sequence"),
}
"""Settings that decide the ids and numbers of a feature; a vector has its width."""

_SEEN: dict[type[Feature], tuple[str, ...]] = {
    Categorical: ("dim", "pooling", "multi", "sequence"),
    Numeric: ("sequence",),
}
"""Settings that decide what a model gets of a feature."""

_TARGET = ("name", "kind", "positive", "threshold", "classes")
"""Settings that decide the numbers of a label."""


def check_made_for(model: nn.Module, schema: Schema) -> None:
    """Raise `ConfigError` if a model of `satrap.models` was made for other features or outputs."""
    other = model.schema if isinstance(model, Ranker) else None
    if other is None:
        return
    what = _difference(other, schema, _SEEN)
    if what is None and list(other.features) != list(schema.features):
        extra = [name for name in schema.features if name not in other.features]
        what = f"it does not know feature {extra[0]!r}" if extra else "its features are in another order"
    if what is None and other.outputs != schema.outputs:
        what = f"it has {other.outputs} outputs, and the labels of the trainer need {schema.outputs}"
    if what is not None:
        raise ConfigError(
            f"the model was made for another schema: {what}",
            fix="make the model and the trainer with one schema",
        )


def check_data(data: object, schema: Schema, *, labels: bool) -> None:
    """Raise `ConfigError` if a data set is read with other features, or if needed labels, than a schema has.

    Data of one's own has no schema; see `check_batch`.
    """
    other = getattr(data, "schema", None)
    if not isinstance(other, Schema):
        return
    what = _difference(schema, other, _READ)
    if what is None and schema.salt != other.salt:
        what = f"salt is {other.salt} there, and {schema.salt} here"
    if what is None and labels and _targets(schema) != _targets(other):
        what = f"its labels are {list(other.label_names)}, and those here {list(schema.label_names)}"
        if other.label_names == schema.label_names:
            what = "it makes other targets of the labels' columns"
    if what is not None:
        raise ConfigError(
            f"the data is read with another schema: {what}",
            why="ids and numbers would mean something else",
            fix="read it with the trainer's: data.with_options(schema=trainer.schema)",
        )


def _targets(schema: Schema) -> list[Any]:
    return [[getattr(label, key) for key in _TARGET] for label in schema.labels]


def _difference(needed: Schema, there: Schema, settings: dict[type[Feature], tuple[str, ...]]) -> str | None:
    """Return what the first feature is that one schema needs and another does not have as it is."""
    for name, feature in needed.features.items():
        other = there.features.get(name)
        if other is None:
            return f"there is no feature {name!r}"
        if type(other) is not type(feature):
            kinds = type(other).__name__, type(feature).__name__
            return f"feature {name!r} is {kinds[0]} in one and {kinds[1]} in the other"
        for key in settings.get(type(feature), ("dim",)):
            one, two = getattr(other, key), getattr(feature, key)
            if one != two:
                return f"{key} of feature {name!r} is {one!r} in one and {two!r} in the other"
    return None


def a_batch(given: object) -> Batch:
    """Return what data has yielded; raise `DataError` if it is no batch."""
    if not isinstance(given, Batch):
        raise DataError(f"batches must be satrap.Batch, got a value of type {type(given).__name__}")
    return given


def check_batch(batch: object, schema: Schema) -> None:
    """Raise `DataError` if a batch is none, or lacks a feature of a schema."""
    batch = a_batch(batch)
    missing = [name for name in schema.categorical if name not in batch.ids]
    missing += [name for name, one in schema.numeric.items() if one.sequence and name not in batch.events]
    if missing:
        raise DataError(
            f"a batch has no feature {missing[0]!r}",
            why="the model needs every feature of the schema",
            fix=f"give Batch.ids, or for numbers of a sequence Batch.events, an entry {missing[0]!r}",
        )
    width = 0 if batch.numeric is None else batch.numeric.shape[-1]
    if width != schema.numeric_width:
        raise DataError(
            f"a batch has {width} columns of numbers, and the schema has {schema.numeric_width}",
            fix="give Batch.numeric float32[size, schema.numeric_width], see Schema.numeric_columns",
        )


@contextmanager
def failing(model: nn.Module, outputs: int) -> Iterator[None]:
    """Turn an error of a model's first forward pass that its input explains into a `ConfigError`."""
    try:
        yield
    except (TypeError, AttributeError, KeyError, IndexError, RuntimeError) as error:
        if is_blamed(error):  # whoever loaded that code names its line
            raise
        if type(error) is RuntimeError and "shape" not in str(error):  # such as memory that is used up
            raise
        raise ConfigError(
            f"{type(model).__name__} failed on its first batch: {type(error).__name__}: {str(error)[:200]}",
            why=f"forward gets an EmbeddedBatch and returns float32[size, {outputs}]",
            fix="see satrap.Trainer for what a model is, or take one of satrap.models",
        ) from error


def check_labels(batch: Batch, schema: Schema) -> None:
    """Raise `DataError` if a batch has no labels, or other ones than a schema."""
    shape = None if batch.labels is None else batch.labels.shape
    if shape != (batch.size, len(schema.labels)):
        found = "no labels" if shape is None else f"labels of shape {list(shape)}"
        raise DataError(
            f"a batch of {batch.size} samples has {found}",
            why="what is learnt or measured is how well they are predicted",
            fix=f"read the data with labels, {list(schema.label_names)}",
        )
