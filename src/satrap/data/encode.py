"""From columns to a batch: labels, ids and numbers of a chunk of rows, as the schema says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from satrap.batch import Batch, Floats, Ids, Jagged, Offsets
from satrap.data.columns import as_array, is_text, to_floats
from satrap.data.hashing import cross_ids, hash_ids, split_ids
from satrap.data.origin import Origin
from satrap.data.transforms import Doubles, compile_steps
from satrap.errors import DataError
from satrap.schema import MISSING_ID, Categorical, Label, Numeric, Schema

_MISSING = np.uint64(MISSING_ID)
_NO_LIMIT = 2**62
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL")
"""Texts that mean "missing" unless the user names others."""


class Missing:
    """Values that mean "missing", whatever the file: as text, as the ids of these texts, and as numbers.

    Args:
        texts: the values as text.
        salt: `Schema.salt`.
    """

    def __init__(self, texts: Sequence[str], salt: int) -> None:
        self.texts = pa.array(texts, pa.string())
        ids = hash_ids(self.texts, salt)
        self.ids = ids[ids != _MISSING]
        self.numbers = [number for text in texts if (number := _number(text)) is not None]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


class Columns:
    """The columns that a schema needs: which are read as numbers, and which as they are (ids).

    Args:
        schema: labels and features.
    """

    def __init__(self, schema: Schema) -> None:
        self.numbers: dict[str, None] = {}
        self.ids: dict[str, None] = {}
        for name, feature in schema.features.items():
            if isinstance(feature, Categorical) and feature.boundaries is None:
                self.ids.update(dict.fromkeys(feature.cross or (feature.column or name,)))
            else:
                self.numbers[feature.column or name] = None
        if schema.group:
            self.ids[schema.group] = None
        for label in schema.labels:
            (self.ids if label.positive else self.numbers)[label.column or label.name] = None
            if label.mask:
                self.numbers[label.mask] = None
        if schema.weight:
            self.numbers[schema.weight] = None

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, each once."""
        return tuple({**self.ids, **self.numbers})


class Encoder:
    """Turns chunks of columns into batches. Compiled once per schema, stateless.

    Args:
        schema: labels and features.
        missing: texts that mean "missing".

    Raises:
        ConfigError: a transform is unknown or not measured yet.
    """

    def __init__(self, schema: Schema, *, missing: Sequence[str]) -> None:
        self.schema = schema
        self._missing = Missing(missing, schema.salt)
        self._dictionaries: dict[str, tuple[pa.Array, Any]] = {}
        self._steps: dict[str, Callable[[Doubles], Doubles]] = {
            name: compile_steps(feature, name) for name, feature in schema.numeric.items()
        }

    def __call__(self, table: pa.Table | pa.RecordBatch, origin: Origin) -> Batch:
        """Return a batch of all rows of `table`.

        Raises:
            DataError: a value that cannot be used, with file, row and column.
        """
        chunk = Chunk(table, origin, self.schema.salt, self._missing, self._dictionaries)
        size = table.num_rows
        ids = {name: chunk.ids(name, feature) for name, feature in self.schema.categorical.items()}
        numeric = None
        if self._steps:
            numeric = np.empty((size, len(self._steps)), np.float32)
            for i, (name, feature) in enumerate(self.schema.numeric.items()):
                numeric[:, i] = chunk.numeric(name, feature, self._steps[name])
        labels, mask = chunk.labels(self.schema.labels) if self.schema.labels else (None, None)
        weights = chunk.weights(self.schema.weight) if self.schema.weight else None
        groups = chunk.hashed(self.schema.group) if self.schema.group else None
        return Batch(size, ids, numeric, labels, mask, weights, groups)


class Chunk:
    """Columns of some rows with the conversions of one schema; each column is hashed at most once.

    Args:
        table: the columns.
        origin: where the rows came from.
        salt: `Schema.salt`.
        missing: what means "missing".
        dictionaries: column -> (its last dictionary, the result computed for that).
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
        """Return `convert(column)`; of a dictionary column only the dictionary is converted, and once."""
        array = self.column(column)
        if not pa.types.is_dictionary(array.type):
            return convert(array)
        key = f"{kind} {column}"
        known = self._dictionaries.get(key)
        if known is None or not _same(known[0], array.dictionary):
            nothing = pa.nulls(1, array.dictionary.type)  # after the last entry: what null rows refer to
            known = (array.dictionary, convert(pa.concat_arrays([array.dictionary, nothing])))
            self._dictionaries[key] = known
        indices = array.indices
        if indices.null_count:
            indices = indices.cast(pa.int64()).fill_null(len(array.dictionary))
        return known[1][indices.to_numpy(zero_copy_only=False)]

    def floats(self, column: str) -> Doubles:
        """Return a column as float64[n], NaN where missing; infinite values are refused."""
        array = self.column(column)
        try:
            values: Doubles = self._spread(column, "numbers", self._floats)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise not_a_number(array, self.origin, column, self._missing.texts) from error
        if np.isinf(values).any():
            raise self._bad(column, np.isinf(values), values, "is infinite", "a model cannot learn from it")
        return values

    def _floats(self, array: pa.Array) -> Doubles:
        values = to_floats(array, self._missing.texts)
        if self._missing.numbers:
            values = np.where(np.isin(values, self._missing.numbers), np.nan, values)
        return values

    def ids(self, name: str, feature: Categorical) -> Jagged:
        """Return the ids of a feature."""
        jagged = self._raw_ids(name, feature)
        if feature.buckets is not None:
            # One is added so that no real value becomes MISSING_ID.
            reduced = jagged.values % np.uint64(feature.buckets) + np.uint64(1)
            jagged = Jagged(np.where(jagged.values == _MISSING, _MISSING, reduced), jagged.offsets)
        return jagged

    def _raw_ids(self, name: str, feature: Categorical) -> Jagged:
        column = feature.column or name
        if feature.cross:
            ids = cross_ids([self.hashed(part) for part in feature.cross])
            return _bag_of_one(ids) if feature.multi else Jagged(ids)
        if feature.multi:
            return self._bags(column, feature)
        if feature.boundaries is not None:
            return Jagged(self._intervals(self.floats(column), feature.boundaries))
        return Jagged(self.hashed(column))

    def _intervals(self, values: Doubles, boundaries: tuple[float, ...]) -> Ids:
        """Return the id of the number of boundaries <= value: 0 below the first, len above the last."""
        table = hash_ids(np.arange(len(boundaries) + 1), self.salt)
        ids = table[np.searchsorted(np.asarray(boundaries, np.float64), values, side="right")]
        ids[np.isnan(values)] = _MISSING
        return ids

    def _bags(self, column: str, feature: Categorical) -> Jagged:
        array = self.column(column)
        limit = feature.max_values or _NO_LIMIT
        if pa.types.is_dictionary(array.type) and not pa.types.is_nested(array.type.value_type):
            array = array.dictionary_decode()
        if feature.separator and is_text(array.type):
            return Jagged(*split_ids(array, feature.separator, limit, self.salt, self._missing.ids))
        if not _is_list(array.type):
            if feature.boundaries is not None:
                return _bag_of_one(self._intervals(self.floats(column), feature.boundaries))
            return _bag_of_one(self.hashed(column))
        values, offsets = _flattened(array)
        inner = Chunk(
            pa.table({column: values}),
            Origin(self.origin.file, np.repeat(self.origin.rows, np.diff(offsets))),
            self.salt,
            self._missing,
            {},
        )
        if feature.boundaries is not None:
            ids = inner._intervals(inner.floats(column), feature.boundaries)
        else:
            ids = inner.hashed(column)
        return _trimmed(ids, offsets, limit)

    def numeric(self, name: str, feature: Numeric, steps: Callable[[Doubles], Doubles]) -> Floats:
        """Return a numeric feature after its transform, float32[n]."""
        column = feature.column or name
        raw = self.floats(column)
        with np.errstate(over="ignore"):
            values = steps(raw).astype(np.float32)
        values[np.isnan(raw)] = feature.missing
        if not np.isfinite(values).all():
            bad = ~np.isfinite(values)
            raise self._bad(column, bad, raw, "is too large for float32", "a model cannot learn from it")
        return values

    def labels(self, labels: tuple[Label, ...]) -> tuple[Floats, npt.NDArray[np.bool_] | None]:
        """Return (float32[n, labels] of 0 and 1, bool[n, labels] or None when all labels are known)."""
        size = self.table.num_rows
        values = np.empty((size, len(labels)), np.float32)
        known: npt.NDArray[np.bool_] | None = None
        if any(label.mask for label in labels):
            known = np.ones((size, len(labels)), np.bool_)
        for i, label in enumerate(labels):
            mask = self._binary(label.mask, None) if label.mask else None
            if known is not None and mask is not None:
                known[:, i] = mask > 0
            values[:, i] = self._label(label, None if mask is None else mask > 0)
        return values, known

    def _label(self, label: Label, known: npt.NDArray[np.bool_] | None) -> Doubles:
        column = label.column or label.name
        if label.positive is not None:
            ids = self.hashed(column)
            self._refuse_missing(column, ids == _MISSING, known)
            positive = hash_ids(list(label.positive), self.salt)
            found: Doubles = np.isin(ids, positive).astype(np.float64)
            return found if known is None else found * known
        if label.threshold is not None:
            numbers = self.floats(column)
            self._refuse_missing(column, np.isnan(numbers), known)
            return np.asarray(numbers >= label.threshold, np.float64)
        return self._binary(column, known)

    def _binary(self, column: str, known: npt.NDArray[np.bool_] | None) -> Doubles:
        values = self.floats(column)
        self._refuse_missing(column, np.isnan(values), known)
        bad = ~((values == 0) | (values == 1))
        if known is not None:
            bad &= known
            values = np.where(known, values, 0.0)
        if bad.any():
            raise self._bad(column, bad, values, "is neither 0 nor 1", "a label or mask is 0 or 1")
        return values

    def _refuse_missing(
        self, column: str, missing: npt.NDArray[np.bool_], known: npt.NDArray[np.bool_] | None
    ) -> None:
        bad = missing if known is None else missing & known
        if bad.any():
            raise DataError(
                "a label is missing",
                where=self.origin.at(int(np.argmax(bad)), column),
                why="nothing can be learned from the row for this label",
                fix="drop such rows, or give Label(mask=...) a column that says where the label is known",
            )

    def weights(self, column: str) -> Floats:
        """Return sample weights, float32[n], finite and >= 0."""
        values = self.floats(column)
        bad = ~(values >= 0)
        if bad.any():
            raise self._bad(column, bad, values, "is not a weight", "weights are numbers >= 0")
        return values.astype(np.float32)

    def _bad(self, column: str, bad: npt.NDArray[np.bool_], values: Any, problem: str, why: str) -> DataError:
        row = int(np.argmax(bad))
        fixes = {
            "is neither 0 nor 1": "give Label(positive=...) or Label(threshold=...), or correct the value",
            "is infinite": "correct the value, or leave it empty to mean missing",
        }
        return DataError(
            f"value {values[row]:g} {problem}",
            where=self.origin.at(row, column),
            why=why,
            fix=fixes.get(problem, "correct the value"),
        )


def not_a_number(array: pa.Array, origin: Origin, column: str, missing: pa.Array | None = None) -> DataError:
    """Return the error that names the first value of a column that is neither a number nor "missing"."""
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    for row in range(len(array)) if is_text(array.type) else ():
        try:
            to_floats(array.slice(row, 1), missing)
        except pa.ArrowInvalid:
            value = array[row].as_py()
            shown = value if isinstance(value, str) else repr(value)
            return DataError(
                f"value {shown[:60]!r} is no number",
                where=origin.at(row, column),
                why="the schema uses this column as a number",
                fix="correct the value, leave it empty to mean missing, or declare the feature categorical",
            )
    return DataError(
        f"a column of type {array.type} cannot be a number",
        where=f"{origin.file}, column {column!r}",
        why="the schema uses this column as a number",
        fix="convert the column, or declare the feature categorical",
    )


def _same(one: pa.Array, other: pa.Array) -> bool:
    """Tell whether two arrays are the same memory (both alive, so addresses cannot have been reused)."""
    if len(one) != len(other) or one.offset != other.offset or one.type != other.type:
        return False
    return [b and b.address for b in one.buffers()] == [b and b.address for b in other.buffers()]


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _flattened(array: pa.Array) -> tuple[pa.Array, Offsets]:
    """Return (values of all lists, int64[n + 1]); a null list is empty."""
    counts = pc.list_value_length(array)
    counts = counts.fill_null(0) if counts.null_count else counts
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(counts.to_numpy(zero_copy_only=False), out=offsets[1:])
    return pc.list_flatten(array), offsets


def _trimmed(ids: Ids, offsets: Offsets, limit: int) -> Jagged:
    """Drop missing values, then all but the first `limit` of each sample."""
    real = ids != _MISSING
    if not real.all():
        before = np.concatenate(([0], np.cumsum(real)))
        ids, offsets = ids[real], before[offsets]
    counts = np.diff(offsets)
    if counts.size and counts.max() > limit:
        place = np.arange(len(ids)) - np.repeat(offsets[:-1], counts)
        ids = ids[place < limit]
        offsets = np.concatenate(([0], np.cumsum(np.minimum(counts, limit))))
    return Jagged(ids, offsets.astype(np.int64, copy=False))


def _bag_of_one(ids: Ids) -> Jagged:
    """Return bags of one id, empty where missing."""
    real = ids != _MISSING
    return Jagged(ids[real], np.concatenate(([0], np.cumsum(real))).astype(np.int64, copy=False))
