"""Decides which values of the label count as 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from satrap.data.columns import to_floats
from satrap.data.hashing import hash_ids
from satrap.errors import ConfigError, DataError
from satrap.init.kinds import words
from satrap.init.profile import LABEL_VALUES, Column, Profile

_YES = set(words("true yes y t positive pos good click clicked buy bought like liked won paid spam fraud"))
_MOST_RATINGS = 25


@dataclass(frozen=True, slots=True)
class Target:
    """The label: `keys` for the recipe besides name, why, and the share of rows with a 1.

    `ones` holds the values that count as 1, or `threshold` the least such number.
    """

    column: str
    keys: dict[str, Any]
    why: str
    share: float

    def of(self, values: Any) -> Any:
        """Return float64[n], 0 and 1, of the label's values in an Arrow array."""
        if "positive" in self.keys:
            return np.isin(hash_ids(values), hash_ids(self.keys["positive"])).astype(np.float64)
        numbers = to_floats(values)
        return (numbers >= self.keys.get("threshold", 0.5)).astype(np.float64)


def choose_label(
    profile: Profile, name: str, *, positive: Sequence[str] = (), threshold: float | None = None
) -> Target:
    """Return the target, as asked for by `positive` or `threshold`, else by its values.

    Raises `DataError` for a label that is missing in rows, constant, or has too many values, `ConfigError`
    for a request that does not fit it.
    """
    column, counts = profile.columns[name], _merged(profile.label)
    if column.missing:
        raise DataError(
            f"the label {name!r} is missing in {column.missing:,} of {column.rows:,} rows",
            why="nothing can be learned from such a row",
            fix="remove these rows, or fill the label in",
        )
    if threshold is not None:
        return _by_threshold(column, name, counts, threshold)
    if positive:
        return _by_values(name, counts, positive)
    if len(counts) == 1:
        raise DataError(
            f"the label {name!r} has the same value in all rows: {next(iter(counts))}",
            why="there is nothing to tell apart",
            fix="give data with both values, or the right column: --label COLUMN",
        )
    if len(counts) == 2:
        return _of_two(name, counts)
    return _of_many(column, name, counts)


def _merged(counts: Counter[str]) -> Counter[str]:
    """Add up the counts of texts that mean the same, such as 1 and 1.0."""
    merged: dict[int, tuple[str, int]] = {}
    for value, count in counts.items():
        key = int(hash_ids([value])[0])
        merged[key] = (merged[key][0] if key in merged else value, count + merged.get(key, ("", 0))[1])
    return Counter(dict(merged.values()))


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return {"true": 1.0, "false": 0.0}.get(text.lower())


def _of_two(name: str, counts: Counter[str]) -> Target:
    rows = sum(counts.values())
    numbers = {value: _number(value) for value in counts}
    if set(numbers.values()) == {0.0, 1.0}:
        one = next(value for value, number in numbers.items() if number == 1)
        return Target(name, {}, "0 and 1", counts[one] / rows)
    yes = [value for value in counts if value.lower() in _YES]
    if len(yes) == 1:
        chosen, reason = yes[0], "by its name"
    elif None not in numbers.values():
        chosen, reason = max(counts, key=lambda value: numbers[value] or 0.0), "the larger number"
    else:
        chosen, reason = min(counts, key=lambda value: (counts[value], value)), "the rarer value"
    [other] = [value for value in counts if value != chosen]
    return Target(name, {"positive": [chosen]}, f"{reason}; {other!r} is 0", counts[chosen] / rows)


def _of_many(column: Column, name: str, counts: Counter[str]) -> Target:
    values = sorted(number for text in counts if (number := _number(text)) is not None)
    if (
        column.numbers
        and 4 <= len(values) == len(counts) <= _MOST_RATINGS
        and -10 <= values[0] <= values[-1] <= 100
    ):
        rows = sum(counts.values())
        shares = {v: sum(n for text, n in counts.items() if float(text) >= v) / rows for v in values[1:]}
        best = min(shares, key=lambda value: abs(shares[value] - 0.5))
        why = f"{len(values)} values, {values[0]:g} to {values[-1]:g}: a rating? --threshold asks otherwise"
        return Target(name, {"threshold": best}, why, shares[best])
    shown = ", ".join(sorted(counts)[:5]) + (", ..." if len(counts) > 5 else "")
    many = f"{len(counts)} values" if counts else f"more than {LABEL_VALUES} values"
    raise DataError(
        f"the label {name!r} has {many}" + (f": {shown}" if counts else ""),
        why="recipes are written for two values; others need kind: regression or multiclass, by hand",
        fix="--threshold NUMBER (numbers from there on are 1)"
        if column.numbers
        else "--positive VALUE (this value is 1, all others are 0)",
    )


def _by_threshold(column: Column, name: str, counts: Counter[str], threshold: float) -> Target:
    if not column.numbers:
        raise ConfigError(
            f"--threshold needs numbers, but the label {name!r} has other values", fix="use --positive VALUE"
        )
    rows = sum(counts.values())
    share = sum(n for text, n in counts.items() if (_number(text) or 0.0) >= threshold) / max(1, rows)
    if (counts and share in (0.0, 1.0)) or not column.low < threshold <= column.high:
        raise ConfigError(
            f"--threshold {threshold:g} gives all rows the same label",
            why=f"{name!r} is between {column.low:g} and {column.high:g}",
            fix="give a number in between",
        )
    return Target(name, {"threshold": threshold}, "as asked for", share)


def _by_values(name: str, counts: Counter[str], positive: Sequence[str]) -> Target:
    ids = set(hash_ids(list(positive)).tolist())
    found = sum(n for value, n in counts.items() if int(hash_ids([value])[0]) in ids)
    if counts and not found:
        shown = ", ".join(sorted(counts)[:5])
        raise ConfigError(f"--positive: {positive[0]!r} is no value of {name!r}", fix=f"values: {shown}")
    return Target(name, {"positive": list(positive)}, "as asked for", found / max(1, sum(counts.values())))
