"""Encoding of columns into a batch: labels, ids and numbers of a chunk of rows, following the schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from satrap.batch import Batch, Floats, Ids, Jagged, Offsets
from satrap.data.encode.folds import FoldColumns, check_folds, numbers_of_ids
from satrap.data.encode.hashing import cross_ids, hash_ids, split_ids
from satrap.data.encode.times import PARTS, to_seconds
from satrap.data.encode.transforms import Doubles, compile_steps
from satrap.data.formats.columns import as_array, is_text, to_floats
from satrap.data.formats.lists import (
    align,
    as_lists,
    check_values,
    cut_weights,
    flattened,
    is_list,
    no_lists,
    split_words,
    within,
)
from satrap.data.source import Origin
from satrap.errors import DataError
from satrap.schema import MISSING_ID, Categorical, Label, Numeric, Schema, Vector

Bools = npt.NDArray[np.bool_]
_MISSING = np.uint64(MISSING_ID)
_NO_LIMIT = 2**62
_NO_LEARNING = "a model cannot learn from such a value"
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL")
"""Texts that mean "missing" by default."""


class Missing:
    """Values that mean "missing" in every file: as text, as ids of the texts, and as numbers."""

    def __init__(self, texts: Sequence[str], salt: int) -> None:
        self.texts = pa.array(texts, pa.string())
        ids = hash_ids(self.texts, salt)
        self.ids = ids[ids != _MISSING]
        self.numbers: list[float] = []
        for text in texts:
            with suppress(ValueError):
                if np.isfinite(number := float(text)):
                    self.numbers.append(number)


def needed_columns(schema: Schema) -> tuple[list[str], list[str]]:
    """Return the unique columns a schema needs: (columns read unchanged, columns read as numbers)."""
    ids: list[str] = []
    numbers: list[str] = []
    for name, feature in schema.features.items():
        counted = isinstance(feature, Numeric) and feature.of_ids
        if isinstance(feature, Vector) or feature.time or feature.sequence or counted:
            ids.append(feature.column or name)
        elif isinstance(feature, Categorical) and feature.boundaries is None:
            ids += feature.cross or [feature.column or name]
        else:
            numbers.append(feature.column or name)
    ids += [feature.weights for feature in schema.categorical.values() if feature.weights]
    if schema.group:
        ids.append(schema.group)
    for label in schema.labels:
        if label.implicit:
            continue
        by_value = label.positive or isinstance(label.classes, tuple)
        (ids if by_value else numbers).append(label.column or label.name)
        if label.mask:
            numbers.append(label.mask)
    if schema.weight:
        numbers.append(schema.weight)
    return list(dict.fromkeys(ids)), list(dict.fromkeys(numbers))


class Encoder:
    """Turns chunks of columns into batches. `ConfigError` for an unknown or unmeasured transform.

    Args:
        schema: labels and features.
        missing: texts that mean "missing".
        training: whether the rows are training rows, whose `mean_label` comes from the other folds.
    """

    def __init__(self, schema: Schema, *, missing: Sequence[str], training: bool = False) -> None:
        self.schema = schema
        means = any(feature.mean_label for feature in schema.numeric.values())
        self._folds_by = FoldColumns(schema) if training and means else None
        if self._folds_by is not None:
            check_folds(schema, self._folds_by)
        self._missing = Missing(missing, schema.salt)
        self._dictionaries: dict[str, tuple[pa.Array, Any]] = {}
        self._columns = schema.numeric_columns
        self._steps = {name: compile_steps(feature, name) for name, feature in schema.numeric.items()}
        self._alone = {k: feature for k, feature in schema.categorical.items() if feature.sequence is None}

    def __call__(self, table: pa.Table | pa.RecordBatch, origin: Origin) -> Batch:
        """Return a batch of all rows; `DataError` names the file, row and column of an unusable value."""
        chunk = ColumnChunk(table, origin, self.schema.salt, self._missing, self._dictionaries)
        if self._folds_by is not None:
            chunk.row_hashes = self._folds_by.hashes(chunk.hashed, chunk.floats)
        size = table.num_rows
        ids = {name: chunk.ids(name, feature) for name, feature in self._alone.items()}
        events: dict[str, Jagged] = {}
        for name in self.schema.sequences:
            of_ids, of_numbers = _sequence(chunk, self.schema, name, self._steps)
            ids |= of_ids
            events |= of_numbers
        numeric = np.empty((size, self.schema.numeric_width), np.float32)
        for name, columns in self._columns.items():
            feature = self.schema.features[name]
            if isinstance(feature, Numeric):
                numeric[:, columns.start] = chunk.numeric(name, feature, self._steps[name])
            elif isinstance(feature, Vector):
                numeric[:, columns] = chunk.vector(name, feature)
        labels, mask = chunk.labels(self.schema.labels) if self.schema.labels else (None, None)
        weights = chunk.weights(self.schema.weight) if self.schema.weight else None
        groups = chunk.hashed(self.schema.group) if self.schema.group else None
        return Batch(
            size, ids, numeric if self._columns else None, labels, mask, weights, groups, events=events
        )


class ColumnChunk:
    """Columns of some rows, converted for one schema; each column and dictionary is hashed at most once.

    `row_hashes`, uint64[n], are set for training rows: the hashes of `FoldColumns`.
    """

    def __init__(
        self,
        table: pa.Table | pa.RecordBatch,
        origin: Origin,
        salt: int,
        missing: Missing,
        dictionaries: dict[str, tuple[pa.Array, Any]],
    ) -> None:
        self.table, self.origin, self.salt, self._missing = table, origin, salt, missing
        self._hashed: dict[str, Ids] = {}
        self.row_hashes: Ids | None = None
        self._dictionaries = dictionaries

    def column(self, name: str) -> pa.Array:
        """Return one column as a single array."""
        return as_array(self.table.column(name))

    def hashed(self, column: str) -> Ids:
        """Return the ids of a single-valued column, uint64[n]."""
        if column not in self._hashed:
            try:
                self._hashed[column] = self._spread(
                    column, "ids", lambda a: hash_ids(a, self.salt, self._missing.ids)
                )
            except DataError as error:
                raise DataError(
                    error.what, where=f"{self.origin.file}, column {column!r}", why=error.why, fix=error.fix
                ) from error
        return self._hashed[column]

    def _spread(self, column: str, kind: str, convert: Callable[[pa.Array], Any]) -> Any:
        """Return `convert(column)`; for a dictionary column only the dictionary is converted, once."""
        array = self.column(column)
        if not pa.types.is_dictionary(array.type):
            return convert(array)
        key = f"{kind} {column}"
        cached = self._dictionaries.get(key)
        if cached is None or not _same(cached[0], array.dictionary):
            nothing = pa.nulls(1, array.dictionary.type)  # after the last entry: the index of null rows
            cached = (array.dictionary, convert(pa.concat_arrays([array.dictionary, nothing])))
            self._dictionaries[key] = cached
        indices = array.indices
        if indices.null_count:
            indices = indices.cast(pa.int64()).fill_null(len(array.dictionary))
        return cached[1][indices.to_numpy(zero_copy_only=False)]

    def floats(self, column: str) -> Doubles:
        """Return a column as float64[n], NaN where missing; infinite values raise an error."""
        array = self.column(column)
        try:
            values: Doubles = self._spread(column, "numbers", self._floats)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise not_a_number(array, self.origin, column, self._missing.texts) from error
        fix = "correct the value, or leave it empty to mean missing"
        self._refuse(column, values, np.isinf(values), "value {:g} is infinite", _NO_LEARNING, fix)
        return values

    def seconds(self, column: str) -> Doubles:
        """Return a column of times as seconds since 1970, float64[n], NaN where missing."""
        array = self.column(column)
        try:
            values: Doubles = self._spread(column, "times", lambda a: to_seconds(a, self._missing.texts))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise no_time(array, self.origin, column, self._missing.texts) from error
        return values

    def numbers(self, name: str, feature: Numeric | Categorical) -> Doubles:
        """Return a feature's numbers before its transform or boundaries, float64[n], NaN if missing."""
        column = feature.column or name
        if isinstance(feature, Numeric) and feature.of_ids:
            return numbers_of_ids(self.hashed(column), feature, self.row_hashes)
        if isinstance(feature, Numeric) and feature.sequence:  # of all events, one after another
            counts, values = flattened(self._lists(column, feature.separator))
            return self._inner(column, values, counts).numbers(column, _one(feature))
        return self.floats(column) if feature.time is None else PARTS[feature.time](self.seconds(column))

    def _floats(self, array: pa.Array) -> Doubles:
        values = to_floats(array, self._missing.texts)
        if self._missing.numbers:
            values = np.where(np.isin(values, self._missing.numbers), np.nan, values)
        return values

    def _lists(self, column: str, separator: str | None, *, brackets: bool = True) -> pa.Array:
        """Return a column as lists, text split at the separator; `DataError` if it has no lists."""
        lists = as_lists(self.column(column), separator, self._missing.texts, brackets=brackets)
        if lists is None:
            raise no_lists(self.column(column).type, f"{self.origin.file}, column {column!r}")
        return lists

    def ids(self, name: str, feature: Categorical) -> Jagged:
        """Return the ids of a feature."""
        return _reduced(self._raw_ids(name, feature), feature, self.salt)

    def _raw_ids(self, name: str, feature: Categorical) -> Jagged:
        column = feature.column or name
        if feature.cross:
            ids = cross_ids([self.hashed(part) for part in feature.cross])
            return _bag_of_one(ids) if feature.multi else Jagged(ids)
        return self._bags(column, feature) if feature.multi else Jagged(self._single(column, feature))

    def _single(self, column: str, feature: Categorical) -> Ids:
        """Return one id per row: of the value, or of its interval (the number of boundaries <= value)."""
        boundaries = feature.boundaries
        if boundaries is None and feature.time is None:
            return self.hashed(column)
        values = self.numbers(column, feature)
        if boundaries is None:
            ids = hash_ids(np.nan_to_num(values).astype(np.int64), self.salt)
        else:
            table = hash_ids(np.arange(len(boundaries) + 1), self.salt)
            ids = table[np.searchsorted(np.asarray(boundaries, np.float64), values, side="right")]
        ids[np.isnan(values)] = _MISSING
        return ids

    def _bags(self, column: str, feature: Categorical) -> Jagged:
        array = self.column(column)
        limit, last = feature.max_values or _NO_LIMIT, feature.keep == "last"
        if pa.types.is_dictionary(array.type) and not pa.types.is_nested(array.type.value_type):
            array = array.dictionary_decode()
        weighted = feature.weights is not None or feature.weight_separator is not None
        if feature.separator and is_text(array.type):
            if not weighted:
                whole = _NO_LIMIT if last else limit
                ids, offsets = split_ids(array, feature.separator, whole, self.salt, self._missing.ids)
                return _trimmed(ids, offsets, limit, last=True) if last else Jagged(ids, offsets)
            array = split_words(array, feature.separator, self._missing.texts)
        if not is_list(array.type):
            if weighted:
                raise no_lists(array.type, f"{self.origin.file}, column {column!r}")
            if is_text(array.type) and feature.boundaries is None:
                _refuse_lists(array, self.origin.at, column)
            return _bag_of_one(self._single(column, feature))
        check_values(array.type, feature.weight_separator, f"{self.origin.file}, column {column!r}")
        (counts, values), weights = flattened(array), None
        if feature.weight_separator is not None:
            values, weight_texts = cut_weights(values, feature.weight_separator)
            weights = self._weights(column, weight_texts, counts)
        elif feature.weights is not None:
            weights = self._weights_beside(feature, counts)
        ids = self._inner(column, values, counts)._single(column, feature)
        return _trimmed(ids, np.append(0, np.cumsum(counts)), limit, weights, last=last)

    def _inner(self, column: str, values: pa.Array, counts: Offsets) -> ColumnChunk:
        """Return a chunk of list values, `counts[i]` of them from row i; its errors name the row."""
        origin = replace(self.origin, rows=np.repeat(self.origin.rows, counts))
        return ColumnChunk(pa.table({column: values}), origin, self.salt, self._missing, {})

    def _weights_beside(self, feature: Categorical, counts: Offsets) -> Floats:
        """Return the weights from a feature's weight column; row i has `counts[i]` values."""
        column = feature.weights or ""
        weight_counts, values = flattened(self._lists(column, feature.separator))
        why = "each value needs its own weight"
        self._refuse(
            column,
            weight_counts,
            weight_counts != counts,
            "the row has {} weights, but another number of values",
            why,
        )
        return self._weights(column, values, counts)

    def _weights(self, column: str, values: pa.Array, counts: Offsets) -> Floats:
        """Return weights of values, float32, 1 where missing; finite and >= 0."""
        inner = self._inner(column, values, counts)
        weights = inner.numeric(column, Numeric(missing=1.0), lambda given: given)
        inner._refuse(column, weights, weights < 0, "value {:g} is not a weight", "weights are numbers >= 0")
        return weights

    def numeric(self, name: str, feature: Numeric, steps: Callable[[Doubles], Doubles]) -> Floats:
        """Return a numeric feature after its transform, float32[n]."""
        column = feature.column or name
        raw = self.numbers(name, feature)
        with np.errstate(over="ignore"):
            values = steps(raw).astype(np.float32)
        values[np.isnan(raw)] = feature.missing
        self._refuse(column, raw, ~np.isfinite(values), "value {:g} is too large for float32", _NO_LEARNING)
        return values

    def vector(self, name: str, feature: Vector) -> Floats:
        """Return a vector feature, float32[n, dim]."""
        column, dim = feature.column or name, feature.dim
        lists = self._lists(column, feature.separator)
        counts, values_in_lists = flattened(lists)
        fix = f"correct the value, or leave it empty to mean zeros; dim is {dim}"
        wrong = (counts != dim) & (counts > 0)
        self._refuse(column, counts, wrong, "a vector has {} numbers", f"the schema declares dim {dim}", fix)
        numbers = self._inner(column, values_in_lists, counts).numeric(column, Numeric(), lambda found: found)
        values = np.zeros((len(lists), dim), np.float32)
        values[counts > 0] = numbers.reshape(-1, dim)
        return values

    def labels(self, labels: tuple[Label, ...]) -> tuple[Floats | Doubles, Bools | None]:
        """Return (labels [n, labels] as in `Batch.labels`, bool[n, labels] or None if all are known)."""
        numbers = any(label.kind == "regression" for label in labels)
        values = np.empty((self.table.num_rows, len(labels)), np.float64 if numbers else np.float32)
        known = np.ones(values.shape, np.bool_)
        for i, label in enumerate(labels):
            if label.mask:
                known[:, i] = self._binary(label.mask, known[:, i]) > 0
            values[:, i] = 1 if label.implicit else self._label(label, known[:, i])
        return values, known if any(label.mask for label in labels) else None

    def _label(self, label: Label, known: Bools) -> npt.NDArray[Any]:
        column = label.column or label.name
        if label.kind == "regression":
            return self._target(label, column, known)
        if label.kind == "multiclass":
            return self._class(label, column, known)
        if label.positive is not None:
            ids = self.hashed(column)
            self._refuse_missing(column, (ids == _MISSING) & known)
            return np.isin(ids, hash_ids(list(label.positive), self.salt)) & known
        if label.threshold is not None:
            numbers = self.floats(column)
            self._refuse_missing(column, np.isnan(numbers) & known)
            return numbers >= label.threshold
        return self._binary(column, known)

    def _target(self, label: Label, column: str, known: Bools) -> Doubles:
        """Return the numbers of a regression label; 0 where it is unknown."""
        values = self.floats(column)
        self._refuse_missing(column, np.isnan(values) & known)
        large = np.abs(values) > np.finfo(np.float32).max
        self._refuse(column, values, large & known, "value {:g} is too large for float32", _NO_LEARNING)
        if label.loss == "poisson":
            bad, why = (values < 0) & known, "loss poisson needs numbers >= 0, such as counts"
            self._refuse(
                column, values, bad, "value {:g} is negative", why, "correct the value, or use loss: squared"
            )
        return np.where(known, values, 0.0)

    def _class(self, label: Label, column: str, known: Bools) -> npt.NDArray[Any]:
        """Return the index of each row's class; 0 where the label is unknown."""
        if isinstance(label.classes, tuple):
            ids = self.hashed(column)
            self._refuse_missing(column, (ids == _MISSING) & known)
            classes = hash_ids(list(label.classes), self.salt)
            order = np.argsort(classes)
            index = order[np.searchsorted(classes[order], ids).clip(max=len(order) - 1)]
            bad, allowed = classes[index] != ids, ", ".join(label.classes)
        else:
            numbers = self.floats(column)
            self._refuse_missing(column, np.isnan(numbers) & known)
            count = label.outputs
            bad, allowed = ~np.isin(numbers, np.arange(count)), f"0 to {count - 1}"
            index = np.where(bad, 0, numbers)
        if (bad & known).any():
            shown = [repr(value)[:60] for value in self.column(column).to_pylist()]
            why = f"classes are {allowed if len(allowed) <= 60 else allowed[:57] + '...'}"
            fix = "correct the value, or add it to the label's classes"
            self._refuse(column, shown, bad & known, "value {} is not one of the classes", why, fix)
        return np.where(known, index, 0)

    def _binary(self, column: str, known: Bools) -> Doubles:
        """Return 0 or 1 for each row; 0 where the label is unknown."""
        try:
            values = self.floats(column)
        except DataError as error:
            fix = "list the values that mean 1: positive: [yes] in a recipe, Label(positive=...) in Python"
            raise DataError(
                error.what, where=error.where, why="a label or mask is 0 or 1", fix=fix
            ) from error
        self._refuse_missing(column, np.isnan(values) & known)
        bad = (values != 0) & (values != 1) & known
        fix = "correct the value, set the label's positive or threshold, or use kind regression or multiclass"
        self._refuse(column, values, bad, "value {:g} is neither 0 nor 1", "a label or mask is 0 or 1", fix)
        return np.where(known, values, 0.0)

    def _refuse_missing(self, column: str, missing: Bools) -> None:
        why = "the model cannot learn this label from the row"
        fix = "drop such rows, or set mask (Label(mask=...)) to a column that is 1 where the label is known"
        self._refuse(column, missing, missing, "a label is missing", why, fix)

    def weights(self, column: str) -> Floats:
        """Return sample weights, float32[n], finite and >= 0."""
        values = self.floats(column)
        self._refuse(column, values, ~(values >= 0), "value {:g} is not a weight", "weights are numbers >= 0")
        return values.astype(np.float32)

    def _refuse(
        self, column: str, values: Any, bad: Bools, what: str, why: str, fix: str = "correct the value"
    ) -> None:
        """Raise `DataError` for the first bad row, if any; `what` has a placeholder for its value."""
        if bad.any():
            row = int(np.argmax(bad))
            raise DataError(what.format(values[row]), where=self.origin.at(row, column), why=why, fix=fix)


def _refuse_lists(array: pa.Array, place: Callable[[int, str], str], column: str) -> None:
    """Raise `DataError` for the first text that looks like several values without a separator."""
    several = pc.match_substring_regex(array.cast(pa.string()), r"[^|;,\t]\s*[|;,\t]\s*[^|;,\t\s]")
    row = pc.index(several, True).as_py()
    if row >= 0:
        value = array[row].as_py()
        sign = next(sign for sign in "|;,\t" if sign in str(value))
        raise DataError(
            f"value {str(value)[:60]!r} would become one id",
            where=place(row, column),
            why="the feature has multi: true, but no separator to split the value",
            fix=f"set separator: {sign!r}; or remove multi: true, if the text is a single value",
        )


def _sequence(
    chunk: ColumnChunk, schema: Schema, name: str, steps: Mapping[str, Callable[[Doubles], Doubles]]
) -> tuple[dict[str, Jagged], dict[str, Jagged]]:
    """Return the ids and numbers of a sequence's events; all have the same offsets."""
    group, lists = schema.sequences[name], dict[str, tuple[str, pa.Array]]()
    for feature_name in (*group.ids, *group.numbers):
        feature = schema.features[feature_name]
        column = feature.column or feature_name
        text = isinstance(feature, Categorical)
        lists[feature_name] = column, chunk._lists(column, feature.separator, brackets=not text)
    counts, values = align(name, lists, chunk.origin)
    mask, offsets = within(np.append(0, np.cumsum(counts)), group.max_values, last=group.keep == "last")
    ids, events = dict[str, Jagged](), dict[str, Jagged]()
    for feature_name, (column, _) in lists.items():
        events_kept = values[feature_name] if mask is None else values[feature_name].filter(pa.array(mask))
        inner, feature = chunk._inner(column, events_kept, np.diff(offsets)), schema.features[feature_name]
        if isinstance(feature, Categorical):
            ids[feature_name] = _reduced(Jagged(inner._single(column, feature), offsets), feature, chunk.salt)
        elif isinstance(feature, Numeric):
            events[feature_name] = Jagged(inner.numeric(column, _one(feature), steps[feature_name]), offsets)
    return ids, events


def _one(feature: Numeric) -> Numeric:
    """Return an event feature as a sample feature with one number per event."""
    return replace(feature, sequence=None, separator=None)


def reduced(ids: Ids, feature: Categorical, salt: int) -> Ids:
    """Return ids with out-of-vocabulary ids merged into one, then mapped to the feature's buckets."""
    if feature.vocabulary is not None:
        inside, outside = _vocabulary(feature.vocabulary, salt)
        ids = np.where(np.isin(ids, inside) | (ids == _MISSING), ids, outside)
    if feature.buckets is not None:
        # Add 1 so that no real value becomes MISSING_ID.
        ids = np.where(ids == _MISSING, _MISSING, ids % np.uint64(feature.buckets) + np.uint64(1))
    return ids


def _reduced(jagged: Jagged, feature: Categorical, salt: int) -> Jagged:
    ids = reduced(jagged.values, feature, salt)
    return jagged if ids is jagged.values else Jagged(ids, jagged.offsets, jagged.weights)


@lru_cache(maxsize=256)
def _vocabulary(values: tuple[str | int, ...], salt: int) -> tuple[Ids, np.uint64]:
    """Return the ids of a vocabulary's values, and the id shared by all other values."""
    return hash_ids(list(map(str, values)), salt), hash_ids(["\x00 outside the vocabulary"], salt)[0]


def not_a_number(array: pa.Array, origin: Origin, column: str, missing: pa.Array | None = None) -> DataError:
    """Return the error for a column's first value that is neither a number nor "missing"."""
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    for row in range(len(array)) if is_text(array.type) else ():
        try:
            to_floats(array.slice(row, 1), missing)
        except pa.ArrowInvalid:
            value = array[row].as_py()
            shown = value if isinstance(value, str) else repr(value)
            return DataError(
                f"value {shown[:60]!r} is not a number",
                where=origin.at(row, column),
                why="the schema uses this column as a number",
                fix="correct the value, leave it empty to mean missing, or declare the feature categorical; "
                f"for a label, set positive: [{shown[:60]}] if the value means 1, or kind: multiclass",
            )
    return DataError(
        f"a column of type {array.type} cannot be a number",
        where=f"{origin.file}, column {column!r}",
        why="the schema uses this column as a number",
        fix="convert the column, or declare the feature categorical (for a label: kind: multiclass)",
    )


def no_time(array: pa.Array, origin: Origin, column: str, missing: pa.Array) -> DataError:
    """Return the error for a column's first value that is not a time."""
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    for row in range(len(array)) if is_text(array.type) else ():
        try:
            to_seconds(array.slice(row, 1), missing)
        except pa.ArrowInvalid:
            return DataError(
                f"value {str(array[row].as_py())[:60]!r} is not a time",
                where=origin.at(row, column),
                why="the recipe or schema uses this column as a time",
                fix="write times as 2024-01-31 08:05:30, or as seconds since 1970; empty means missing",
            )
    return DataError(
        f"a column of type {array.type} cannot be a time",
        where=f"{origin.file}, column {column!r}",
        why="times are timestamps, dates, texts such as 2024-01-31, or seconds since 1970",
        fix="convert the column",
    )


def _same(one: pa.Array, other: pa.Array) -> bool:
    """Return whether two arrays share memory (both are alive, so addresses cannot have been reused)."""
    if len(one) != len(other) or one.offset != other.offset or one.type != other.type:
        return False
    return [b and b.address for b in one.buffers()] == [b and b.address for b in other.buffers()]


def _trimmed(
    ids: Ids, offsets: Offsets, limit: int | None, weights: Floats | None = None, *, last: bool = False
) -> Jagged:
    """Drop missing values, then keep the first (or last) `limit` values of each sample."""
    real = ids != _MISSING
    if not real.all():
        before = np.concatenate(([0], np.cumsum(real)))
        ids, offsets = ids[real], before[offsets]
        weights = None if weights is None else weights[real]
    mask, offsets = within(offsets, limit, last=last)
    if mask is not None:
        ids = ids[mask]
        weights = None if weights is None else weights[mask]
    return Jagged(ids, offsets.astype(np.int64, copy=False), weights)


def _bag_of_one(ids: Ids) -> Jagged:
    """Return bags of one id, empty where missing."""
    return _trimmed(ids, np.arange(len(ids) + 1, dtype=np.int64), 1)
