"""Which columns prepared files have, and how they are made of those of the raw files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard

import numpy as np
import pyarrow as pa

from satrap.batch import Batch, Jagged
from satrap.data.columns import as_array, is_text, to_floats
from satrap.data.encode import Encoder
from satrap.data.ids import id_array
from satrap.data.source import Piece
from satrap.schema import Categorical, Feature, Numeric, Schema, Vector

Kind = Literal["raw", "number", "id", "ids", "weights"]
Use = tuple[Kind, Categorical | None]
"""How a column is written; bags also by the feature that says what separates their values."""

_PLAIN: Mapping[Kind, int] = {"raw": 0, "number": 1, "id": 2}
"""Which use of a column keeps its name, so that labels, weight, group and split find what they look for."""

_BOUNDED = {"clip": [-1.0, 1.0]}
"""A transform after which no number is too large: the real one may need statistics."""


@dataclass(frozen=True, slots=True)
class Output:
    """One column of prepared files.

    Args:
        name: in the prepared files.
        column: in the raw files.
        kind: "raw" (as it is), "number" (float64, if it was text), "id", "ids" (lists), "weights" (lists).
        feature: name in `Layout.schema` of the feature that gives ids or weights, else "".
    """

    name: str
    column: str
    kind: Kind
    feature: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of prepared files.

    Args:
        outputs: the columns, in order.
        schema: what the raw files are read with. It refuses values that training would refuse.
        changes: feature -> keys of the recipe that differ: a column that is needed in two forms has two
            names.
    """

    outputs: tuple[Output, ...]
    schema: Schema
    changes: Mapping[str, Mapping[str, Any]]

    def table(self, piece: Piece, encoder: Encoder, missing: pa.Array) -> pa.Table:
        """Return the prepared columns of some rows; `missing` are the texts that mean missing."""
        batch = encoder(piece.table, piece.origin)
        there = set(piece.table.column_names)  # only training rows have the column of a split by time
        outputs = [output for output in self.outputs if output.column in there]
        arrays = [self._array(output, piece.table, batch, missing) for output in outputs]
        return pa.Table.from_arrays(arrays, [output.name for output in outputs])

    def _array(self, output: Output, table: pa.Table, batch: Batch, missing: pa.Array) -> pa.Array:
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
    if feature.weight_separator is not None:  # stays one column, so that the recipe stays as it is
        values = pa.StructArray.from_arrays([values, weights], ["id", "weight"])
    return pa.ListArray.from_arrays(offsets, values)


class _Uses:
    """How each column of the raw files is used."""

    def __init__(self) -> None:
        self.of: dict[str, list[Use]] = {}

    def add(self, column: str, kind: Kind, bag: Categorical | None = None) -> None:
        uses = self.of.setdefault(column, [])
        if (kind, bag) not in uses:
            uses.append((kind, bag))

    def names(self) -> dict[tuple[str, Use], str]:
        """Return the name of each use: the column's own for one that is as it is, else for the first."""
        names: dict[tuple[str, Use], str] = {}
        taken = set(self.of)
        for column, uses in self.of.items():
            if ("raw", None) in uses and ("number", None) in uses:
                uses.remove(("number", None))
            uses.sort(key=lambda use: _PLAIN.get(use[0], len(_PLAIN)))
            for use in uses:
                own, number = column, 2
                while use is not uses[0] and own in taken:
                    own, number = f"{column}.{number}", number + 1
                taken.add(own)
                names[column, use] = own
        return names


def layout(schema: Schema, also: Sequence[str] = ()) -> Layout:
    """Return the columns that a schema needs; those in `also` are kept as they are."""
    uses = _Uses()
    for name, feature in schema.features.items():
        _add_feature(uses, feature, feature.column or name)
    _add_others(uses, schema, also)
    names = uses.names()
    outputs, features = [], _checks(schema)
    for (column, (kind, bag)), name in names.items():
        source = ""
        if kind == "id":
            source = f"id of {name}"
            features[source] = Categorical(dim=1, column=column)
        elif bag is not None:
            source = f"ids of {names[str(bag.column), ('ids', bag)]}"
            features[source] = bag
        outputs.append(Output(name, column, kind, source))
    reading = Schema(schema.labels, features, weight=schema.weight, group=schema.group, salt=schema.salt)
    changes = {name: _changes(name, feature, names) for name, feature in schema.features.items()}
    return Layout(tuple(outputs), reading, {name: keys for name, keys in changes.items() if keys})


def _is_hashed(feature: Feature) -> TypeGuard[Categorical]:
    """Tell whether the ids of a feature are those of the values themselves, not of intervals or times."""
    return isinstance(feature, Categorical) and feature.boundaries is None and feature.time is None


def _bag(feature: Categorical, column: str) -> Categorical:
    """Return a feature with all values of a bag: what is done with the ids is left to training."""
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
    """Add columns of labels, weight and group; a value whose id alone counts may be there as id already."""
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
        kinds = {kind for kind, _ in uses.of.get(column, ())}
        if "id" not in kinds or kinds & {"raw", "number"}:
            uses.add(column, "raw")


def _checks(schema: Schema) -> dict[str, Feature]:
    """Return features whose encoding refuses the numbers, times and vectors that training would refuse."""
    found: dict[str, Feature] = {}
    for name, feature in schema.features.items():
        column = feature.column or name
        if isinstance(feature, Numeric):
            found[f"value of {name}"] = replace(feature, column=column, transform=_BOUNDED, missing=0.0)
        elif isinstance(feature, Categorical) and not _is_hashed(feature):
            found[f"value of {name}"] = replace(feature, column=column, max_values=None, keep="first")
        elif isinstance(feature, Vector):
            found[f"value of {name}"] = replace(feature, column=column)
    return found


def _changes(name: str, feature: Feature, names: Mapping[tuple[str, Use], str]) -> dict[str, Any]:
    """Return the keys of a feature's recipe that name other columns now."""
    if not _is_hashed(feature):
        return {}
    if feature.cross:
        cross = tuple(names[part, ("id", None)] for part in feature.cross)
        return {} if cross == feature.cross else {"cross": list(cross)}
    column = feature.column or name
    if not feature.multi:
        own = names[column, ("id", None)]
        return {} if own == column else {"column": own}
    bag, changes = _bag(feature, column), {}
    if (own := names[column, ("ids", bag)]) != column:
        changes["column"] = own
    if feature.weights and (beside := names[feature.weights, ("weights", bag)]) != feature.weights:
        changes["weights"] = beside
    return changes
