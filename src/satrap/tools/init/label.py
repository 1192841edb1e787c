"""Choice of the label's kind: binary (and the values that mean 1), a number, or one of several classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from satrap.data.encode.hashing import hash_ids
from satrap.data.formats.columns import as_array, to_floats
from satrap.errors import ConfigError, DataError
from satrap.schema import Kind
from satrap.tools.init.names import words
from satrap.tools.init.profile import LABEL_VALUES, Column, Profile

_YES = set(words("true yes y t positive pos good click clicked buy bought like liked won paid spam fraud"))
_RATINGS = set(words("rating ratings rate rates star stars score scores grade grades"))
_MOST_RATINGS = 25
_MOST_CODES = 12
"""Most unique whole numbers of a multiclass label; a label with more is a number."""
_FAR = 20
"""Distance from the mean, in deviations, at which a few rows dominate the squared error."""


@dataclass(frozen=True, slots=True)
class LabelChoice:
    """The label: its recipe keys except name, the reason, and the share of 1s of a binary label."""

    column: str
    keys: dict[str, Any]
    why: str
    share: float | None = None

    @property
    def kind(self) -> Kind:
        """Kind of the label."""
        kind: Kind = self.keys.get("kind", "binary")
        return kind

    def questions(self, values: Any) -> list[Any]:
        """Return the targets, each float64[n] of 0 and 1, that a copy of the label would predict.

        For a binary label it is the label itself; for a number, whether it is above three quantiles each; for
        classes, whether the row has each of the three most frequent classes.
        """
        if self.kind == "multiclass":
            _, codes, counts = np.unique(hash_ids(values), return_inverse=True, return_counts=True)
            return [(codes == code).astype(np.float64) for code in np.argsort(-counts, kind="stable")[:3]]
        if "positive" in self.keys:
            return [np.isin(hash_ids(values), hash_ids(self.keys["positive"])).astype(np.float64)]
        numbers = to_floats(values)
        if self.kind == "regression":
            return [(numbers > cut).astype(np.float64) for cut in np.quantile(numbers, [0.5, 0.1, 0.9])]
        return [(numbers >= self.keys.get("threshold", 0.5)).astype(np.float64)]


def choose_label(
    profile: Profile,
    name: str,
    *,
    kind: Kind | None = None,
    positive: Sequence[str] = (),
    threshold: float | None = None,
) -> LabelChoice:
    """Return the target, as requested by `kind`, `positive` or `threshold`, else inferred from the values.

    Raises `DataError` for a label that is missing in rows, constant, or has too many values, `ConfigError`
    for a request that does not fit the label.
    """
    column, counts = profile.columns[name], _merged(profile.label)
    wrong = column.unusable or ("its values are lists" if column.is_list else "")
    if wrong:
        raise DataError(
            f"the label {name!r} cannot be learned: {wrong}", fix="choose another column: --label COLUMN"
        )
    if column.missing:
        raise DataError(
            f"the label {name!r} is missing in {column.missing:,} of {column.rows:,} rows",
            why="a row without a label cannot be learned from",
            fix="remove these rows, or fill in the label",
        )
    if kind not in (None, "binary") and (positive or threshold is not None):
        raise ConfigError(f"--positive and --threshold need --kind binary, not {kind}")
    if threshold is not None:
        return _by_threshold(column, name, counts, threshold)
    if positive:
        return _by_values(name, counts, positive)
    if len(counts) == 1:
        raise DataError(
            f"the label {name!r} has the same value in all rows: {next(iter(counts))}",
            why="a constant label leaves nothing to learn",
            fix="give data in which the label varies, or choose another column: --label COLUMN",
        )
    if kind is None:
        kind = _kind_of(column, counts)
    if kind == "binary":
        return _of_two(name, counts) if len(counts) == 2 else _of_ratings(column, name, counts)
    if kind == "regression":
        values = to_floats(as_array(profile.sample.column(name))) if _measured(column) else None
        return _of_numbers(column, name, values)
    return _of_classes(column, name, counts)


def _measured(column: Column) -> bool:
    return column.numbers and column.texts == 0


def _kind_of(column: Column, counts: Counter[str]) -> Kind:
    if len(counts) == 2 or names_rating(column):
        return "binary"
    codes = counts and len(counts) <= _MOST_CODES and column.fractions == 0
    return "regression" if _measured(column) and not codes else "multiclass"


def _merged(counts: Counter[str]) -> Counter[str]:
    """Merge the counts of texts with the same meaning, such as 1 and 1.0."""
    merged: dict[int, tuple[str, int]] = {}
    for value, count in counts.items():
        key = int(hash_ids([value])[0])
        merged[key] = (merged[key][0] if key in merged else value, count + merged.get(key, ("", 0))[1])
    return Counter(dict(merged.values()))


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return {"true": 1.0, "false": 0.0}.get(text.lower())


def _of_two(name: str, counts: Counter[str]) -> LabelChoice:
    rows = sum(counts.values())
    numbers = {value: _number(value) for value in counts}
    if set(numbers.values()) == {0.0, 1.0}:
        positive = next(value for value, number in numbers.items() if number == 1)
        return LabelChoice(name, {}, "0 and 1", counts[positive] / rows)
    yes = [value for value in counts if value.lower() in _YES]
    if len(yes) == 1:
        chosen, reason = yes[0], "by its name"
    elif None not in numbers.values():
        chosen, reason = max(counts, key=lambda value: numbers[value] or 0.0), "the larger number"
    else:
        chosen, reason = min(counts, key=lambda value: (counts[value], value)), "the rarer value"
    [other] = [value for value in counts if value != chosen]
    return LabelChoice(name, {"positive": [chosen]}, f"{reason}; {other!r} is 0", counts[chosen] / rows)


def names_rating(column: Column) -> bool:
    """Return whether a column has few unique numbers and the name of a rating."""
    few = column.numbers and column.texts == 0 and 4 <= column.distinct.count <= _MOST_RATINGS
    return few and -10 <= column.low <= column.high <= 100 and bool(_RATINGS & set(words(column.name)))


def _of_ratings(column: Column, name: str, counts: Counter[str]) -> LabelChoice:
    values = sorted(_number(text) or 0.0 for text in counts)
    if not counts or not _measured(column):
        raise ConfigError(
            f"the label {name!r} has more than two values, and --kind binary needs the values for 1",
            fix="add --threshold NUMBER (this and larger numbers mean 1) or --positive VALUE",
        )
    rows = sum(counts.values())
    shares = {v: sum(n for text, n in counts.items() if (_number(text) or 0.0) >= v) / rows for v in values}
    best = min(values[1:], key=lambda value: abs(shares[value] - 0.5))
    why = f"{len(values)} values, {values[0]:g} to {values[-1]:g}, probably a rating; see --threshold"
    return LabelChoice(name, {"threshold": best}, why, shares[best])


def _of_numbers(column: Column, name: str, values: Any) -> LabelChoice:
    """Return the target for a numeric label; `values`, float64[n], are a sample of it."""
    if values is None:
        raise DataError(
            f"the label {name!r} is not a number: {', '.join(sorted(column.odd)[:3]) or 'infinite values'}",
            fix="use --kind multiclass, or correct these values",
        )
    keys: dict[str, Any] = {"kind": "regression"}
    whole, mean, deviation = column.fractions == 0, values.mean(), values.std()
    skew = np.mean((values - mean) ** 3) / max(deviation**3, 1e-30)
    far = max(column.high - mean, mean - column.low) / max(deviation, 1e-30)
    if whole and column.low == 0 and column.high <= 1000 and skew > 1:
        return LabelChoice(name, keys | {"loss": "poisson"}, "whole numbers from 0 with a long tail: a count")
    if far > _FAR:
        why = f"the farthest number is {far:.0f} deviations from the mean, too far for squared errors"
        return LabelChoice(name, keys | {"loss": "huber"}, why)
    why = f"numbers, {column.low:g} to {column.high:g}; squared errors learn their mean"
    return LabelChoice(name, keys | {"loss": "squared"}, why)


def _of_classes(column: Column, name: str, counts: Counter[str]) -> LabelChoice:
    if not counts or 2 * len(counts) > column.rows:
        many = f"{len(counts)} values" if counts else f"more than {LABEL_VALUES} values"
        raise DataError(
            f"the label {name!r} has {many} in {column.rows:,} rows, and the values are not numbers",
            why="a class needs several rows to learn from",
            fix="use --positive VALUE (it means 1, other values 0), or choose another column: --label COLUMN",
        )
    often, count = max(counts.items(), key=lambda pair: pair[1])
    why = f"{len(counts)} classes, {often!r} has {count / column.rows:.3g} of the rows"
    numbers = {value: _number(value) for value in counts}
    if set(numbers.values()) == set(range(len(counts))):
        return LabelChoice(name, {"kind": "multiclass", "classes": len(counts)}, why)
    ordered = sorted(counts, key=lambda value: (numbers[value] or 0.0, value))
    return LabelChoice(name, {"kind": "multiclass", "classes": ordered}, why)


def _by_threshold(column: Column, name: str, counts: Counter[str], threshold: float) -> LabelChoice:
    if not column.numbers:
        raise ConfigError(
            f"--threshold needs numbers, but the label {name!r} has other values", fix="use --positive VALUE"
        )
    rows = sum(counts.values())
    share = sum(n for text, n in counts.items() if (_number(text) or 0.0) >= threshold) / max(1, rows)
    if (counts and share in (0.0, 1.0)) or not column.low < threshold <= column.high:
        raise ConfigError(
            f"--threshold {threshold:g} gives all rows the same label",
            why=f"{name!r} ranges from {column.low:g} to {column.high:g}",
            fix="give a number in this range",
        )
    return LabelChoice(name, {"threshold": threshold}, "as requested", share)


def _by_values(name: str, counts: Counter[str], positive: Sequence[str]) -> LabelChoice:
    ids = set(hash_ids(list(positive)).tolist())
    positives = sum(n for value, n in counts.items() if int(hash_ids([value])[0]) in ids)
    if counts and not positives:
        shown = ", ".join(sorted(counts)[:5])
        what = f"--positive: {positive[0]!r} is not a value of {name!r}"
        raise ConfigError(what, fix=f"use one of the values, such as {shown}")
    return LabelChoice(
        name, {"positive": list(positive)}, "as requested", positives / max(1, sum(counts.values()))
    )
