"""Columns of prepared files, and their conversion from the columns of raw files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeGuard

import numpy as np
import pyarrow as pa

from satrap.batch import Batch, Jagged
from satrap.data.encode.encoder import Encoder
from satrap.data.encode.ids import id_array
from satrap.data.formats.columns import as_array, is_text, to_floats
from satrap.data.source import ScanPiece
from satrap.schema import Categorical, Feature, Numeric, Schema, Vector

Kind = Literal["raw", "number", "id", "ids", "weights"]
Use = tuple[Kind, Categorical | None]
"""Format of a written column; for a bag also the feature that defines its separators."""

_BOUNDED = {"clip": [-1.0, 1.0]}
"""A transform that bounds all numbers, used because the real transform may need statistics."""


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """One column of prepared files, with the same name as the raw column.

    Args:
        column: name.
        kind: "raw" (unchanged), "number" (float64, if it was text), "id", "ids" (lists), "weights" (lists).
        feature: name in `OutputLayout.schema` of the feature that yields ids or weights, else "".
    """

    column: str
    kind: Kind
    feature: str = ""


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """The columns of prepared files.

    Args:
        outputs: the columns, in order.
        schema: schema to read the raw files with. It rejects the same values as training.
    """

    outputs: tuple[OutputColumn, ...]
    schema: Schema

    def table(self, piece: ScanPiece, encoder: Encoder, missing: pa.Array) -> pa.Table:
        """Return the prepared columns of some rows; `missing` has the texts that mean missing."""
        batch = encoder(piece.table, piece.origin)
        there = set(piece.table.column_names)  # only training rows have the column of a time split
        outputs = [output for output in self.outputs if output.column in there]
        arrays = [self._array(output, piece.table, batch, missing) for output in outputs]
        return pa.Table.from_arrays(arrays, [output.column for output in outputs])

    def _array(self, output: OutputColumn, table: pa.Table, batch: Batch, missing: pa.Array) -> pa.Array:
        if output.feature:
            feature = self.schema.categorical[output.feature]
            return _of_ids(batch.ids[output.feature], output.kind, feature, self.schema.salt)
        array = as_array(table.column(output.column))
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if output.kind == "number" and is_text(array.type):
            return pa.array(to_floats(array, missing), from_pandas=True)
        return array


def _of_ids(ids: Jagged, kind: Kind, feature: Categorical, salt: int) -> pa.Array:
    if ids.offsets is None:
        return id_array(ids.values, salt)
    offsets = pa.array(ids.offsets.astype(np.int32))
    weights = None if ids.weights is None else pa.array(ids.weights)
    if kind == "weights":
        return pa.ListArray.from_arrays(offsets, weights)
    values = id_array(ids.values, salt)
    if feature.weight_separator is not None:  # one column, so that the recipe need not change
        values = pa.StructArray.from_arrays([values, weights], ["id", "weight"])
    return pa.ListArray.from_arrays(offsets, values)


class _Uses:
    """Uses of each column of the raw files."""

    def __init__(self) -> None:
        self.of: dict[str, list[Use]] = {}

    def add(self, column: str, kind: Kind, bag: Categorical | None = None) -> None:
        uses = self.of.setdefault(column, [])
        if (kind, bag) not in uses:
            uses.append((kind, bag))

    def plain(self) -> set[str]:
        """Return the columns to keep unchanged: those used in raw form or in two forms.

        A bag and its weights are kept unchanged together, because both omit missing values.
        """
        columns = {column for column, uses in self.of.items() if len(uses) > 1 or ("raw", None) in uses}
        bags = {bag for uses in self.of.values() for _, bag in uses if bag is not None and bag.weights}
        pairs = [{str(bag.column), str(bag.weights)} for bag in bags]
        while some := [pair for pair in pairs if pair & columns and not pair <= columns]:
            columns = columns.union(*some)
        return columns


def layout(schema: Schema, also: Sequence[str] = ()) -> OutputLayout:
    """Return the columns that a schema needs; columns in `also` are kept unchanged."""
    uses = _Uses()
    for name, feature in schema.features.items():
        _add_feature(uses, feature, feature.column or name)
    _add_others(uses, schema, also)
    bags = list(
        dict.fromkeys(bag for column_uses in uses.of.values() for _, bag in column_uses if bag is not None)
    )
    names = {bag: f"ids {number} of {bag.column}" for number, bag in enumerate(bags)}
    features = _checks(schema) | {name: bag for bag, name in names.items()}
    outputs, plain = [], uses.plain()
    for column, column_uses in uses.of.items():
        if ("id", None) in column_uses:
            features[f"id of {column}"] = Categorical(dim=1, column=column)
        kind, bag = ("raw", None) if column in plain else column_uses[0]
        source = names[bag] if bag is not None else f"id of {column}" if kind == "id" else ""
        outputs.append(OutputColumn(column, kind, source))
    reading = Schema(schema.labels, features, weight=schema.weight, group=schema.group, salt=schema.salt)
    return OutputLayout(tuple(outputs), reading)


def _is_hashed(feature: Feature) -> TypeGuard[Categorical]:
    """Return whether a feature's ids are hashes of its values, not of intervals or times."""
    return isinstance(feature, Categorical) and feature.boundaries is None and feature.time is None


def _bag(feature: Categorical, column: str) -> Categorical:
    """Return a feature with all values of a bag; training applies limits, buckets and pooling."""
    return replace(
        feature,
        dim=1,
        pooling="sum" if feature.sequence is None else "none",
        table=None,
        column=column,
        buckets=None,
        vocabulary=None,
        max_values=None,
        keep="first",
    )


def _add_feature(uses: _Uses, feature: Feature, column: str) -> None:
    if isinstance(feature, Vector):
        uses.add(column, "raw")
    elif isinstance(feature, Numeric) and feature.of_ids:
        uses.add(column, "id")
    elif not _is_hashed(feature):
        lists = feature.sequence or (isinstance(feature, Categorical) and feature.multi)
        uses.add(column, "raw" if lists or feature.time else "number")
        if isinstance(feature, Categorical) and feature.weights:
            uses.add(feature.weights, "raw")
    elif feature.cross:
        for part in feature.cross:
            uses.add(part, "id")
    elif feature.multi:
        bag = _bag(feature, column)
        uses.add(column, "ids", bag)
        if feature.weights:
            uses.add(feature.weights, "weights", bag)
    else:
        uses.add(column, "id")


def _add_others(uses: _Uses, schema: Schema, also: Sequence[str]) -> None:
    """Add columns of labels, weight and group; columns used only by id may already be present as ids."""
    by_id = [schema.group] if schema.group else []
    for label in schema.labels:
        column = label.column or label.name
        if label.positive or isinstance(label.classes, tuple):
            by_id.append(column)
        else:
            uses.add(column, "number")
        if label.mask:
            uses.add(label.mask, "number")
    if schema.weight:
        uses.add(schema.weight, "number")
    for column in also:
        uses.add(column, "raw")
    for column in by_id:
        if uses.of.get(column) != [("id", None)]:
            uses.add(column, "raw")


def _checks(schema: Schema) -> dict[str, Feature]:
    """Return features whose encoding rejects the same numbers, times and vectors as training."""
    features: dict[str, Feature] = {}
    for name, feature in schema.features.items():
        column = feature.column or name
        if isinstance(feature, Numeric) and feature.of_ids:
            continue  # "id of" its column is a feature
        if isinstance(feature, Numeric):
            features[f"value of {name}"] = replace(feature, column=column, transform=_BOUNDED, missing=0.0)
        elif isinstance(feature, Categorical) and not _is_hashed(feature):
            features[f"value of {name}"] = replace(feature, column=column, max_values=None, keep="first")
        elif isinstance(feature, Vector):
            features[f"value of {name}"] = replace(feature, column=column)
    return features
