"""Turns the columns of joined requests into one batch, equal to that of `satrap.data.encode.Encoder`.

`Encoder` converts a column at a time, which costs some microseconds each, whatever its length. Here plain
columns of all requests are converted together: all integers with one call, all texts, all numbers. What is
left (lists, times, boundaries, mixed types) goes the way of `Encoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.batch import Batch, Floats, Ids, Jagged, one_id_each
from satrap.data.encode import Encoder, Missing, needed_columns, reduced
from satrap.data.hashing import cross_ids, hash_ids, hash_integers
from satrap.data.source import Origin
from satrap.data.transforms import Doubles, compile_steps
from satrap.schema import Categorical, Numeric, Schema
from satrap.serve.request import ITEMS, ScoreRequest

Types = frozenset[type]
_WHOLE: Types = frozenset({int})
_TEXT: Types = frozenset({str})
_NUMBERS: Types = frozenset({int, float, type(None)})
"""Types of the values of a column that is converted together with others. A truth value is of none."""
_EXACT = 2.0**53
"""Beyond it, not every whole number is a float64; Arrow refuses to mix such a number with others."""
_ENCODERS = 64
"""Most encoders of some features that are kept."""


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
        self._id_columns = list(dict.fromkeys(c for parts in self._parts.values() for c in parts))
        numeric = {name: f for name, f in schema.numeric.items() if f.time is None and f.sequence is None}
        self._number_columns = list(dict.fromkeys(f.column or name for name, f in numeric.items()))
        self._alike = [
            _Alike(names, [self._number_columns.index(numeric[name].column or name) for name in names], f)
            for f, names in _alike(numeric)
        ]
        self._uniform = len(self._alike) == 1 and self._alike[0].columns == list(
            range(len(self._number_columns))
        )
        self._encoders: dict[frozenset[str], Encoder] = {}

    def __call__(self, requests: Sequence[ScoreRequest]) -> Batch:
        """Return the rows of all requests, one after another.

        Raises:
            DataError: a value cannot be used. Encode the requests one by one to learn whose it is.
        """
        size = sum(request.size for request in requests)
        hashed = self._hashed(requests)
        ids = {name: one_id_each(hashed[column]) for name, column in self._as_they_are if column in hashed}
        for name, feature in self._made.items():
            parts = [hashed[column] for column in self._parts[name] if column in hashed]
            if len(parts) == len(self._parts[name]):
                own = cross_ids(parts) if feature.cross else parts[0]
                ids[name] = one_id_each(reduced(own, feature, self._schema.salt))
        numbers = self._numbers(requests)
        left = frozenset(self._schema.features.keys() - ids.keys() - numbers.keys())
        rest = self._rest(left, requests) if left else None
        numeric: Floats | None = None
        if self._schema.numeric_width:
            numeric = np.empty((size, self._schema.numeric_width), np.float32)
            for name, columns in self._schema.numeric_columns.items():
                if name in numbers:
                    numeric[:, columns.start] = numbers[name]
                elif rest is not None and rest[0].numeric is not None:
                    numeric[:, columns] = rest[0].numeric[:, rest[1][name]]
        return Batch(
            size,
            {
                name: ids[name] if rest is None or name in ids else rest[0].ids[name]
                for name in self._schema.categorical
            },
            numeric,
            events={} if rest is None else rest[0].events,
        )

    def _hashed(self, requests: Sequence[ScoreRequest]) -> dict[str, Ids]:
        """Return the ids of columns that hold only integers or only text, of all rows."""

        def hashed(kind: Types, flat: list[Any]) -> Ids | None:
            salt, missing = self._schema.salt, self._missing.ids
            try:
                if kind is _WHOLE:
                    return hash_integers(np.array(flat, np.int64), salt, missing)
                return hash_ids(pa.array(flat, pa.string()), salt, missing)
            except (OverflowError, pa.ArrowException):
                return None  # more than 63 bits, or a surrogate: `Encoder` knows what to do

        found: dict[str, Ids] = {}
        for columns, block in _converted(self._id_columns, requests, (_WHOLE, _TEXT), hashed):
            found |= zip(columns, block, strict=True)
        return found

    def _numbers(self, requests: Sequence[ScoreRequest]) -> dict[str, Floats]:
        """Return the numeric features whose columns hold numbers or null and nothing that is refused."""
        found: dict[str, Floats] = {}
        raw: dict[str, Doubles] = {}
        for columns, block in _converted(self._number_columns, requests, (_NUMBERS,), self._doubles):
            if len(columns) == len(self._number_columns) and self._uniform:
                order = [columns.index(column) for column in self._number_columns]
                return self._alike[0](block[order])
            raw |= zip(columns, block, strict=True)
        for alike in self._alike:
            columns = [self._number_columns[index] for index in alike.columns]
            if all(column in raw for column in columns):
                found |= alike(np.stack([raw[column] for column in columns]))
        return found

    def _doubles(self, _: Types, flat: list[Any]) -> Doubles | None:
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
        """Return a batch with some features, by `Encoder`, and where their numbers are in it."""
        if names not in self._encoders:
            if len(self._encoders) >= _ENCODERS:  # clients decide which features are left
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
    """Numeric features with the same transform: applied to all their columns at once."""

    def __init__(self, names: Sequence[str], columns: Sequence[int], feature: Numeric) -> None:
        self._names, self.columns, self._missing = names, list(columns), feature.missing
        self._steps = compile_steps(feature, names[0])

    def __call__(self, raw: Doubles) -> dict[str, Floats]:
        """Return the features of raw numbers [columns, rows]; nothing if a result is not finite."""
        with np.errstate(over="ignore"):
            values = self._steps(raw.reshape(-1)).astype(np.float32).reshape(raw.shape)
        values[np.isnan(raw)] = self._missing
        if not np.isfinite(values).all():
            return {}
        return dict(zip(self._names, values, strict=True))


def _is_plain(feature: Categorical) -> bool:
    """Return whether a feature has one id of one value in each row."""
    special = feature.multi or feature.sequence or feature.time or feature.boundaries is not None
    return not special


def _alike(features: Mapping[str, Numeric]) -> list[tuple[Numeric, list[str]]]:
    """Return the numeric features by their transforms."""
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


Values = Mapping[str, Sequence[Any]]
Convert = Callable[[Types, list[Any]], npt.NDArray[Any] | None]
"""Makes an array of values of some types; None: they cannot be converted together."""


def _converted(
    columns: Sequence[str], requests: Sequence[ScoreRequest], kinds: Sequence[Types], convert: Convert
) -> Iterator[tuple[list[str], npt.NDArray[Any]]]:
    """Yield columns whose values are of one of some kinds, and these converted together, [columns, rows].

    Columns with Arrow arrays are left out. A column that is context in all requests has one value of each,
    which is repeated after it was converted.
    """
    values, shared = _values(columns, requests)
    counts = [request.size for request in requests]
    for kind, chosen in _by_kind(list(values), values, kinds):
        array = convert(kind, list(chain.from_iterable([values[column] for column in chosen])))
        if array is None:
            continue
        repeated = sum(column in shared for column in chosen)  # they come first
        ends = repeated * len(requests)
        block = np.empty((len(chosen), sum(counts)), array.dtype)
        head = array[:ends].reshape(repeated, len(requests))
        block[:repeated] = head if len(requests) == 1 else np.repeat(head, counts, axis=1)
        block[repeated:] = array[ends:].reshape(len(chosen) - repeated, sum(counts))
        yield chosen, block


def _values(columns: Sequence[str], requests: Sequence[ScoreRequest]) -> tuple[Values, Set[str]]:
    """Return the values of columns that are lists, and which of them have one value per request."""
    first, everywhere = requests[0], set(requests[0].context)
    if len(requests) == 1:  # the usual case
        one = {column: [first.context[column]] for column in columns if column in everywhere}
        one |= {column: first.items[column] for column in columns if column not in everywhere}
        if set(map(type, one.values())) == {list}:
            return one, everywhere
    everywhere = everywhere.intersection(*(request.context for request in requests[1:]))
    found: dict[str, Sequence[Any]] = {
        column: [request.context[column] for request in requests]
        for column in columns
        if column in everywhere
    }
    for column in columns:
        if column in everywhere:
            continue
        parts = [
            [request.context[column]] * request.size if column in request.context else request.items[column]
            for request in requests
        ]
        if set(map(type, parts)) == {list}:
            found[column] = parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))
    return found, everywhere


def _by_kind(
    columns: Sequence[str], values: Values, kinds: Sequence[Types]
) -> Iterator[tuple[Types, list[str]]]:
    """Yield types, and the columns all of whose values are of them."""
    if not columns:
        return
    every = set(map(type, chain.from_iterable([values[column] for column in columns])))
    for allowed in kinds:
        if every <= allowed:  # the usual case: one look at all of them
            yield allowed, list(columns)
            return
    types = {column: set(map(type, values[column])) for column in columns}
    for allowed in kinds:
        if chosen := [column for column in columns if types[column] <= allowed]:
            yield allowed, chosen


def concatenated(batches: Sequence[Batch]) -> Batch:
    """Return the samples of several batches as one, in order; all have the same features."""
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
