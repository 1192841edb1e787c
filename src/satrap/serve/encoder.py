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

from satrap.batch import Batch, Floats, Ids, Jagged, Offsets, Runs, one_id_each
from satrap.data.encode import Encoder, Missing, needed_columns, reduced
from satrap.data.hashing import cross_ids, hash_ids, hash_integers
from satrap.data.source import Origin
from satrap.data.transforms import Doubles, compile_steps
from satrap.schema import Categorical, Numeric, Schema, Vector
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
_NEVER = frozenset({""})
"""Stands for the columns of a feature that is never shared: no column has an empty name."""


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
        """Return the rows of all requests, one after another; see `runs`."""
        return self.runs(requests).expanded()

    def runs(self, requests: Sequence[ScoreRequest]) -> Runs:
        """Return the rows of all requests, one run each: features whose columns are context are shared.

        Raises:
            DataError: a value cannot be used. Encode the requests one by one to learn whose it is.
        """
        counts = np.array([request.size for request in requests], np.int64)
        shared = set(requests[0].context).intersection(*(request.context for request in requests[1:]))
        own, common = self._ids(requests, shared, counts)
        numbers = np.empty((int(counts.sum()), self._width), np.float32) if self._width else None
        shared_numbers = np.zeros(self._width, np.bool_)
        given = set(own) | set(common)
        if numbers is not None:
            given |= self._numbers(requests, shared, counts, numbers, shared_numbers)
        left = self._schema.features.keys() - given
        alike = frozenset(name for name in left if self._columns_of.get(name, _NEVER) <= shared)
        events: Mapping[str, Jagged] = {}
        for names, into in ((left - alike, own), (alike, common)):
            if not names:
                continue
            asked = requests if into is own else [ScoreRequest(1, each.context, {}) for each in requests]
            rest, columns = self._rest(frozenset(names), asked)
            into |= rest.ids
            if into is own:
                events = rest.events
            if numbers is not None and rest.numeric is not None:
                found = rest.numeric if into is own else np.repeat(rest.numeric, counts, axis=0)
                for name, source in columns.items():
                    numbers[:, self._schema.numeric_columns[name]] = found[:, source]
                    shared_numbers[self._schema.numeric_columns[name]] = into is common
        return Runs(self._order, counts, own, common, numbers, shared_numbers, events)

    def _ids(
        self, requests: Sequence[ScoreRequest], shared: Set[str], counts: Offsets
    ) -> tuple[dict[str, Jagged], dict[str, Jagged]]:
        """Return features of columns that hold only integers or only text: of each row, and shared."""
        hashed = self._hashed(requests, shared)
        own: dict[str, Jagged] = {}
        common: dict[str, Jagged] = {}
        for name, column in self._as_they_are:
            if (values := hashed.get(column)) is not None:
                (common if column in shared else own)[name] = one_id_each(values)
        for name, feature in self._made.items():
            columns = self._parts[name]
            if not all(column in hashed for column in columns):
                continue
            into = common if all(column in shared for column in columns) else own
            parts = [
                np.repeat(hashed[column], counts) if into is own and column in shared else hashed[column]
                for column in columns
            ]
            ids = cross_ids(parts) if feature.cross else parts[0]
            into[name] = one_id_each(reduced(ids, feature, self._schema.salt))
        return own, common

    def _hashed(self, requests: Sequence[ScoreRequest], shared: Set[str]) -> dict[str, Ids]:
        """Return the ids of columns that hold only integers or only text; shared ones as in `_values`."""

        def hashed(kind: Types, flat: list[Any] | Array) -> Ids | None:
            salt, missing = self._schema.salt, self._missing.ids
            try:
                if kind is _WHOLE:
                    return hash_integers(np.asarray(flat, np.int64), salt, missing)
                return hash_ids(pa.array(flat, pa.string()), salt, missing)
            except (OverflowError, pa.ArrowException):
                return None  # more than 63 bits, or a surrogate: `Encoder` knows what to do

        found: dict[str, Ids] = {}
        for columns, ids in _converted(self._id_columns, requests, shared, (_WHOLE, _TEXT), hashed):
            found |= zip(columns, _by_column(ids, columns, requests, shared), strict=True)
        return found

    def _numbers(
        self,
        requests: Sequence[ScoreRequest],
        shared: Set[str],
        counts: Offsets,
        into: Floats,
        shared_numbers: npt.NDArray[np.bool_],
    ) -> set[str]:
        """Write the numeric features whose columns hold numbers or null and nothing that is refused.

        Returns their names.
        """
        raw: dict[str, Doubles] = {}
        given: set[str] = set()

        def put(alike: _Alike, names: Sequence[str], repeated: int, values: Doubles) -> None:
            if (found := alike(values)) is None:
                return
            places, runs = [self._places[name] for name in names], repeated * len(requests)
            head = found[:runs].reshape(repeated, len(requests)).T
            into[:, places[:repeated]] = head if len(requests) == 1 else np.repeat(head, counts, axis=0)
            into[:, places[repeated:]] = found[runs:].reshape(len(names) - repeated, len(into)).T
            shared_numbers[places[:repeated]] = True
            given.update(names)

        for columns, values in _converted(self._number_columns, requests, shared, (_NUMBERS,), self._doubles):
            if self._uniform and len(columns) == len(self._number_columns):
                names = self._alike[0].names_of(columns)
                put(self._alike[0], names, sum(column in shared for column in columns), values)
                return given
            raw |= zip(columns, _by_column(values, columns, requests, shared), strict=True)
        for alike in self._alike:
            if not all(column in raw for column in alike.columns):
                continue
            pairs = sorted(alike.pairs, key=lambda pair: pair[1] not in shared)
            values = np.concatenate([raw[column] for _, column in pairs])
            put(alike, [name for name, _ in pairs], sum(c in shared for _, c in pairs), values)
        return given

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

    def __init__(self, names: Sequence[str], columns: Sequence[str], feature: Numeric) -> None:
        self.pairs, self.columns = list(zip(names, columns, strict=True)), list(columns)
        self._names, self._missing = {column: name for name, column in self.pairs}, feature.missing
        self._steps = compile_steps(feature, names[0])

    def names_of(self, columns: Sequence[str]) -> list[str]:
        """Return a feature of each column."""
        return [self._names[column] for column in columns]

    def __call__(self, raw: Doubles) -> Floats | None:
        """Return the features of raw numbers, float32[n]; None if a result is not finite."""
        with np.errstate(over="ignore"):
            values = self._steps(raw).astype(np.float32)
        values[np.isnan(raw)] = self._missing
        return values if np.isfinite(values).all() else None


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


Array = npt.NDArray[Any]
Values = Mapping[str, list[Any] | Array]
"""Column -> its values: as JSON has them, or an array of whole numbers or floats."""
Convert = Callable[[Types, list[Any] | Array], Array | None]
"""Makes an array of values of some types; None: they cannot be converted together."""
_PLAIN = {list, np.ndarray}
_TYPES = {np.dtype(np.int64): int, np.dtype(np.float64): float}


def _converted(
    columns: Sequence[str],
    requests: Sequence[ScoreRequest],
    shared: Set[str],
    kinds: Sequence[Types],
    convert: Convert,
) -> Iterator[tuple[list[str], npt.NDArray[Any]]]:
    """Yield columns whose values are of one of some kinds, and the values of all of them, converted together.

    Shared columns come first, with a value for each request; the others have one for each row. Columns with
    Arrow arrays are left out.
    """
    values = _values(columns, requests, shared)
    for kind, chosen, flat in _by_kind(values, kinds):
        if (array := convert(kind, flat)) is not None:
            yield chosen, array


def _by_column(
    array: npt.NDArray[Any], columns: Sequence[str], requests: Sequence[ScoreRequest], shared: Set[str]
) -> Iterator[npt.NDArray[Any]]:
    """Yield the values of each of the columns that were converted together."""
    repeated, size = sum(column in shared for column in columns), sum(request.size for request in requests)
    ends = repeated * len(requests)
    yield from array[:ends].reshape(repeated, len(requests))
    yield from array[ends:].reshape(len(columns) - repeated, size)


def _values(columns: Sequence[str], requests: Sequence[ScoreRequest], shared: Set[str]) -> Values:
    """Return the values of columns that are plain, of shared columns first, with one for each request."""
    first = requests[0]
    if len(requests) == 1:  # the usual case
        found: dict[str, Any] = {column: [first.context[column]] for column in columns if column in shared}
        given = first.items
        found |= {column: given[column] for column in columns if column in given}
        if _PLAIN.issuperset(map(type, found.values())):
            return found
    found = {
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
            found[column] = np.concatenate(parts)
        elif kinds <= _PLAIN:
            found[column] = list(
                chain.from_iterable(part if type(part) is list else part.tolist() for part in parts)
            )
    return found


def _by_kind(values: Values, kinds: Sequence[Types]) -> Iterator[tuple[Types, list[str], list[Any] | Array]]:
    """Yield types, the columns all of whose values are of them, and these values, column after column."""
    if not values:
        return
    own = list(values.values())
    lists = [each for each in own if type(each) is list]
    plain: list[Any] = list(chain.from_iterable(lists))
    every = set(map(type, plain))
    if len(lists) < len(own):
        every |= {_TYPES[each.dtype] for each in own if type(each) is not list}  # type: ignore[union-attr]
    for allowed in kinds:
        if every <= allowed:  # the usual case: one look at all of them
            yield allowed, list(values), plain if len(lists) == len(own) else _joined(own)
            return
    types = {
        column: set(map(type, given)) if type(given) is list else {_TYPES[given.dtype]}  # type: ignore[union-attr]
        for column, given in values.items()
    }
    for allowed in kinds:
        if chosen := [column for column in values if types[column] <= allowed]:
            yield allowed, chosen, _joined([values[column] for column in chosen])


def _joined(columns: Sequence[list[Any] | Array]) -> list[Any] | Array:
    """Return the values of columns of one kind, column after column: a list if all are lists."""
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
