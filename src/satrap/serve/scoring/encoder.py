"""Turns the columns of joined requests into one batch, with the same result as
`satrap.data.encode.encoder.Encoder`.

`Encoder` converts one column at a time, which costs some microseconds for each column, whatever its length.
Here the plain columns of all requests are converted together: one call for all integers, one for all texts,
one for all numbers. `Encoder` converts the other columns: lists, times, boundaries and mixed types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.batch import Batch, Floats, Ids, Jagged, Offsets, Runs, one_id_each
from satrap.data.encode.encoder import Encoder, Missing, needed_columns, reduced
from satrap.data.encode.folds import numbers_of_ids
from satrap.data.encode.hashing import cross_ids, hash_ids, hash_integers
from satrap.data.encode.transforms import Doubles, compile_steps
from satrap.data.source import Origin
from satrap.schema import Categorical, Numeric, Schema, Vector
from satrap.serve.http.request import ITEMS, ScoreRequest

Types = frozenset[type]
_WHOLE: Types = frozenset({int})
_TEXT: Types = frozenset({str})
_NUMBERS: Types = frozenset({int, float, type(None)})
"""Types of values that are converted together; bool is in none of them."""
_EXACT = 2.0**53
"""Larger whole numbers may not be exact as float64; Arrow refuses to mix them with other numbers."""
_ENCODERS = 64
"""Maximum number of cached encoders, one for each subset of features."""
_NEVER = frozenset({""})
"""Stands for the columns of a feature that is never shared; a column name cannot be empty."""


class RequestEncoder:
    """Turns requests into a batch.

    Args:
        schema: the features, without labels.
        missing: texts that mean "missing", as in training.
    """

    def __init__(self, schema: Schema, missing: Sequence[str]) -> None:
        self._schema, self._texts, self._missing = schema, missing, Missing(missing, schema.salt)
        self._categorical = {name: f for name, f in schema.categorical.items() if _is_plain(f)}
        self._made = {
            name: f for name, f in self._categorical.items() if f.cross or f.vocabulary or f.buckets
        }
        self._as_they_are = [(n, f.column or n) for n, f in self._categorical.items() if n not in self._made]
        self._parts = {name: f.cross or [f.column or name] for name, f in self._categorical.items()}
        self._counted = [_Counted(n, f.column or n, f) for n, f in schema.numeric.items() if f.of_ids]
        parts = (*chain(*self._parts.values()), *(counted.column for counted in self._counted))
        self._id_columns = list(dict.fromkeys(parts))
        numeric = {
            name: f
            for name, f in schema.numeric.items()
            if f.time is None and f.sequence is None and not f.of_ids
        }
        self._number_columns = list(dict.fromkeys(f.column or name for name, f in numeric.items()))
        self._alike = [
            _Alike(names, [numeric[n].column or n for n in names], f) for f, names in _alike(numeric)
        ]
        self._uniform = len(self._alike) == 1 and self._alike[0].columns == self._number_columns
        self._width, self._order = schema.numeric_width, list(schema.categorical)
        self._places = {name: columns.start for name, columns in schema.numeric_columns.items()}
        self._columns_of = {
            name: frozenset(chain(*needed_columns(Schema((), {name: feature}))))
            for name, feature in schema.features.items()
            if isinstance(feature, Vector) or feature.sequence is None
        }
        self._encoders: dict[frozenset[str], Encoder] = {}

    def __call__(self, requests: Sequence[ScoreRequest]) -> Batch:
        """Return the rows of all requests, concatenated; see `runs`."""
        return self.runs(requests).expanded()

    def runs(self, requests: Sequence[ScoreRequest]) -> Runs:
        """Return the rows of all requests, one run each; features are shared if their columns are context.

        Raises:
            DataError: a value is invalid. Encode the requests one by one to find the request that has it.
        """
        counts = np.array([request.size for request in requests], np.int64)
        shared = set(requests[0].context).intersection(*(request.context for request in requests[1:]))
        hashed = self._hashed(requests, shared)
        per_row, common = self._ids(hashed, shared, counts)
        numbers = np.empty((int(counts.sum()), self._width), np.float32) if self._width else None
        shared_numbers = np.zeros(self._width, np.bool_)
        encoded = set(per_row) | set(common)
        if numbers is not None:
            encoded |= self._numbers(requests, shared, counts, numbers, shared_numbers)
            for counted in self._counted:
                if (ids := hashed.get(counted.column)) is None or (values := counted(ids)) is None:
                    continue
                place, repeated = self._places[counted.name], counted.column in shared
                numbers[:, place] = np.repeat(values, counts) if repeated else values
                shared_numbers[place] = repeated
                encoded.add(counted.name)
        remaining = self._schema.features.keys() - encoded
        alike = frozenset(name for name in remaining if self._columns_of.get(name, _NEVER) <= shared)
        events: Mapping[str, Jagged] = {}
        for names, into in ((remaining - alike, per_row), (alike, common)):
            if not names:
                continue
            rows = requests if into is per_row else [ScoreRequest(1, each.context, {}) for each in requests]
            rest, columns = self._rest(frozenset(names), rows)
            into |= rest.ids
            if into is per_row:
                events = rest.events
            if numbers is not None and rest.numeric is not None:
                values = rest.numeric if into is per_row else np.repeat(rest.numeric, counts, axis=0)
                for name, source in columns.items():
                    numbers[:, self._schema.numeric_columns[name]] = values[:, source]
                    shared_numbers[self._schema.numeric_columns[name]] = into is common
        return Runs(self._order, counts, per_row, common, numbers, shared_numbers, events)

    def _ids(
        self, hashed: Mapping[str, Ids], shared: Set[str], counts: Offsets
    ) -> tuple[dict[str, Jagged], dict[str, Jagged]]:
        """Return the features of columns with only integers or only text: per row, and shared."""
        per_row: dict[str, Jagged] = {}
        common: dict[str, Jagged] = {}
        for name, column in self._as_they_are:
            if (values := hashed.get(column)) is not None:
                (common if column in shared else per_row)[name] = one_id_each(values)
        for name, feature in self._made.items():
            columns = self._parts[name]
            if not all(column in hashed for column in columns):
                continue
            into = common if all(column in shared for column in columns) else per_row
            parts = [
                np.repeat(hashed[column], counts) if into is per_row and column in shared else hashed[column]
                for column in columns
            ]
            ids = cross_ids(parts) if feature.cross else parts[0]
            into[name] = one_id_each(reduced(ids, feature, self._schema.salt))
        return per_row, common

    def _hashed(self, requests: Sequence[ScoreRequest], shared: Set[str]) -> dict[str, Ids]:
        """Return the ids of columns with only integers or only text; shared columns as in `_values`."""

        def hashed(kind: Types, flat: list[Any] | Array) -> Ids | None:
            salt, missing = self._schema.salt, self._missing.ids
            try:
                if kind is _WHOLE:
                    return hash_integers(np.asarray(flat, np.int64), salt, missing)
                return hash_ids(pa.array(flat, pa.string()), salt, missing)
            except (OverflowError, pa.ArrowException):
                return None  # more than 63 bits, or a surrogate: left to `Encoder`

        by_column: dict[str, Ids] = {}
        for columns, ids in _converted(self._id_columns, requests, shared, (_WHOLE, _TEXT), hashed):
            by_column |= zip(columns, _by_column(ids, columns, requests, shared), strict=True)
        return by_column

    def _numbers(
        self,
        requests: Sequence[ScoreRequest],
        shared: Set[str],
        counts: Offsets,
        into: Floats,
        shared_numbers: npt.NDArray[np.bool_],
    ) -> set[str]:
        """Write the numeric features whose columns hold only valid numbers or null.

        Returns the names of these features.
        """
        raw: dict[str, Doubles] = {}
        written: set[str] = set()

        def put(alike: _Alike, names: Sequence[str], repeated: int, values: Doubles) -> None:
            if (features := alike(values)) is None:
                return
            places, runs = [self._places[name] for name in names], repeated * len(requests)
            head = features[:runs].reshape(repeated, len(requests)).T
            into[:, places[:repeated]] = head if len(requests) == 1 else np.repeat(head, counts, axis=0)
            into[:, places[repeated:]] = features[runs:].reshape(len(names) - repeated, len(into)).T
            shared_numbers[places[:repeated]] = True
            written.update(names)

        for columns, values in _converted(self._number_columns, requests, shared, (_NUMBERS,), self._doubles):
            if self._uniform and len(columns) == len(self._number_columns):
                names = self._alike[0].names_of(columns)
                put(self._alike[0], names, sum(column in shared for column in columns), values)
                return written
            raw |= zip(columns, _by_column(values, columns, requests, shared), strict=True)
        for alike in self._alike:
            if not all(column in raw for column in alike.columns):
                continue
            pairs = sorted(alike.pairs, key=lambda pair: pair[1] not in shared)
            values = np.concatenate([raw[column] for _, column in pairs])
            put(alike, [name for name, _ in pairs], sum(c in shared for _, c in pairs), values)
        return written

    def _doubles(self, _: Types, flat: list[Any] | Array) -> Doubles | None:
        try:
            values = np.array(flat, np.float64)
        except OverflowError:
            return None
        if self._missing.numbers:
            values[np.isin(values, self._missing.numbers)] = np.nan
        return None if (np.abs(values) >= _EXACT).any() else values

    def _rest(
        self, names: frozenset[str], requests: Sequence[ScoreRequest]
    ) -> tuple[Batch, Mapping[str, slice]]:
        """Return a batch of some features, from `Encoder`, and the places of their numbers in it."""
        if names not in self._encoders:
            if len(self._encoders) >= _ENCODERS:  # clients choose the subsets, so they have no other limit
                self._encoders.clear()
            features = {name: f for name, f in self._schema.features.items() if name in names}
            schema = Schema((), features, salt=self._schema.salt)
            self._encoders[names] = Encoder(schema, missing=self._texts)
        encoder = self._encoders[names]
        ids, numbers = needed_columns(encoder.schema)
        columns = list(dict.fromkeys([*ids, *numbers]))
        batches = [
            encoder(request.table(columns), Origin(ITEMS, np.arange(request.size))) for request in requests
        ]
        return concatenated(batches), encoder.schema.numeric_columns


class _Alike:
    """Numeric features with the same transform, which is applied to all their columns at once."""

    def __init__(self, names: Sequence[str], columns: Sequence[str], feature: Numeric) -> None:
        self.pairs, self.columns = list(zip(names, columns, strict=True)), list(columns)
        self._names, self._missing = {column: name for name, column in self.pairs}, feature.missing
        self._steps = compile_steps(feature, names[0])

    def names_of(self, columns: Sequence[str]) -> list[str]:
        """Return the name of a feature for each column."""
        return [self._names[column] for column in columns]

    def __call__(self, raw: Doubles) -> Floats | None:
        """Return the features of raw numbers, float32[n]; None if a result is not finite."""
        with np.errstate(over="ignore"):
            values = self._steps(raw).astype(np.float32)
        values[np.isnan(raw)] = self._missing
        return values if np.isfinite(values).all() else None


class _Counted:
    """A feature that is made of the counts of ids."""

    def __init__(self, name: str, column: str, feature: Numeric) -> None:
        self.name, self.column, self._feature = name, column, feature
        self._finish = _Alike([name], [column], feature)

    def __call__(self, ids: Ids) -> Floats | None:
        """Return the numbers of ids, float32[n]; None if a result is not finite."""
        return self._finish(numbers_of_ids(ids, self._feature))


def _is_plain(feature: Categorical) -> bool:
    """Return whether a feature has exactly one id per row, from one value."""
    special = feature.multi or feature.sequence or feature.time or feature.boundaries is not None
    return not special


def _alike(features: Mapping[str, Numeric]) -> list[tuple[Numeric, list[str]]]:
    """Return the numeric features grouped by transform."""
    groups: list[tuple[Numeric, list[str]]] = []
    for name, feature in features.items():
        plain = replace(feature, column=None)
        for other, names in groups:
            if other == plain:
                names.append(name)
                break
        else:
            groups.append((plain, [name]))
    return groups


Array = npt.NDArray[Any]
Values = Mapping[str, list[Any] | Array]
"""Column -> its values: a list of JSON values, or an array int64 or float64."""
Convert = Callable[[Types, list[Any] | Array], Array | None]
"""Converts values of the given types to an array; None: they cannot be converted together."""
_PLAIN = {list, np.ndarray}
_TYPES = {np.dtype(np.int64): int, np.dtype(np.float64): float}


def _converted(
    columns: Sequence[str],
    requests: Sequence[ScoreRequest],
    shared: Set[str],
    kinds: Sequence[Types],
    convert: Convert,
) -> Iterator[tuple[list[str], npt.NDArray[Any]]]:
    """Yield groups of columns with values of the same kind, and their values, converted together.

    Shared columns come first, with one value per request; other columns have one value per row. Columns with
    Arrow arrays are skipped.
    """
    values = _values(columns, requests, shared)
    for kind, chosen, flat in _by_kind(values, kinds):
        if (array := convert(kind, flat)) is not None:
            yield chosen, array


def _by_column(
    array: npt.NDArray[Any], columns: Sequence[str], requests: Sequence[ScoreRequest], shared: Set[str]
) -> Iterator[npt.NDArray[Any]]:
    """Yield the values of each column of a group that was converted together."""
    repeated, size = sum(column in shared for column in columns), sum(request.size for request in requests)
    ends = repeated * len(requests)
    yield from array[:ends].reshape(repeated, len(requests))
    yield from array[ends:].reshape(len(columns) - repeated, size)


def _values(columns: Sequence[str], requests: Sequence[ScoreRequest], shared: Set[str]) -> Values:
    """Return the values of the plain columns: shared columns first, with one value per request."""
    first = requests[0]
    if len(requests) == 1:  # the usual case
        values: dict[str, Any] = {column: [first.context[column]] for column in columns if column in shared}
        items = first.items
        values |= {column: items[column] for column in columns if column in items}
        if _PLAIN.issuperset(map(type, values.values())):
            return values
    values = {
        column: [request.context[column] for request in requests] for column in columns if column in shared
    }
    for column in columns:
        if column in shared:
            continue
        parts: list[Any] = [
            [request.context[column]] * request.size if column in request.context else request.items[column]
            for request in requests
        ]
        kinds = set(map(type, parts))
        if kinds == {np.ndarray}:
            values[column] = np.concatenate(parts)
        elif kinds <= _PLAIN:
            values[column] = list(
                chain.from_iterable(part if type(part) is list else part.tolist() for part in parts)
            )
    return values


def _by_kind(values: Values, kinds: Sequence[Types]) -> Iterator[tuple[Types, list[str], list[Any] | Array]]:
    """Yield a kind, the columns with only values of this kind, and their values, concatenated."""
    if not values:
        return
    parts = list(values.values())
    lists = [each for each in parts if type(each) is list]
    plain: list[Any] = list(chain.from_iterable(lists))
    every = set(map(type, plain))
    if len(lists) < len(parts):
        every |= {_TYPES[each.dtype] for each in parts if type(each) is not list}  # type: ignore[union-attr]
    for allowed in kinds:
        if every <= allowed:  # the usual case: all columns are of one kind
            yield allowed, list(values), plain if len(lists) == len(parts) else _joined(parts)
            return
    types = {
        column: set(map(type, part)) if type(part) is list else {_TYPES[part.dtype]}  # type: ignore[union-attr]
        for column, part in values.items()
    }
    for allowed in kinds:
        if chosen := [column for column in values if types[column] <= allowed]:
            yield allowed, chosen, _joined([values[column] for column in chosen])


def _joined(columns: Sequence[list[Any] | Array]) -> list[Any] | Array:
    """Return the concatenated values of columns of one kind: a list if all columns are lists."""
    parts: list[Array] = []
    plain: list[Any] = []
    for each in columns:
        if type(each) is list:
            plain += each
            continue
        if plain:
            parts.append(_array(plain))
            plain = []
        parts.append(each)  # type: ignore[arg-type]
    if not parts:
        return plain
    return np.concatenate([*parts, _array(plain)] if plain else parts)


def _array(values: list[Any]) -> Array:
    return np.array(values, np.int64 if set(map(type, values)) == {int} else np.float64)


def concatenated(batches: Sequence[Batch]) -> Batch:
    """Return the samples of batches with the same features as one batch, in order."""
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    numeric = [batch.numeric for batch in batches if batch.numeric is not None]
    return Batch(
        sum(batch.size for batch in batches),
        {name: _one_after_another([batch.ids[name] for batch in batches]) for name in first.ids},
        np.concatenate(numeric) if numeric else None,
        events={name: _one_after_another([batch.events[name] for batch in batches]) for name in first.events},
    )


def _one_after_another(parts: Sequence[Jagged]) -> Jagged:
    offsets = weights = None
    if any(part.offsets is not None for part in parts):
        counts = [
            np.ones(len(part.values), np.int64) if part.offsets is None else np.diff(part.offsets)
            for part in parts
        ]
        offsets = np.append(0, np.cumsum(np.concatenate(counts)))
    if any(part.weights is not None for part in parts):
        weights = np.concatenate(
            [
                np.ones(len(part.values), np.float32) if part.weights is None else part.weights
                for part in parts
            ]
        )
    return Jagged(np.concatenate([part.values for part in parts]), offsets, weights)
