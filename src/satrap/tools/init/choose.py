"""Choice of features from facts about the data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from satrap.tools.init.kinds import Decision
from satrap.tools.init.profile import Column

Lines = dict[str, tuple[Any, str]]
_MOST_BINS = 128
"""Most bins of a number, and most unique values that have a bin each."""
_STRAIGHT = 0.98
"""Correlation of numbers with their logarithms above which the logarithms add nothing."""
_MOST_PARTS = 15_000
"""Most keys and values of all features together; a recipe may have 20,000."""


@dataclass(slots=True)
class Features:
    """Features with their keys and reasons; `width` is the width of the network's input."""

    lines: Lines = field(default_factory=dict)
    width: int = 0

    def add(self, name: str, keys: dict[str, Any], why: str) -> None:
        """Add a feature; a duplicate name gets a number."""
        free, number = name, 2
        while free in self.lines:
            free, number = f"{name}_{number}", number + 1
        if free != keys.get("column", name):
            keys = {**keys, "column": keys.get("column", name)}
        if keys.get("column") == free:
            del keys["column"]
        self.lines[free] = (keys, why)
        self.width += keys.get("dim", keys.get("vector", 1))


def dim_of(distinct: int) -> int:
    """Return the embedding dim for a number of unique ids."""
    return int(min(16, max(4, 2 ** round(math.log2(max(1, distinct)) / 2))))


def add_features(
    found: Features, column: Column, decision: Decision, *, bins: int, both: bool = False
) -> None:
    """Add the features of a column; numbers also get `bins` bins and, with `both`, a second scale."""
    share = f"{column.missing_share:.0%}" if column.missing_share >= 0.01 else "under 1%"
    name, missing = column.name, f", {share} missing" if column.missing else ""
    distinct = column.distinct.count
    count = f"{'' if column.distinct.exact else 'about '}{distinct:,} values{missing}"
    if decision.kind == "category":
        found.add(name, {"dim": dim_of(distinct)}, f"{decision.why}, {count}")
    elif decision.kind == "values":
        keys: dict[str, Any] = {"dim": dim_of(distinct), "multi": True, "pooling": "mean"}
        if decision.separator:
            keys["separator"] = decision.separator
        found.add(name, keys, f"{decision.why}{missing}")
    elif decision.kind == "vector":
        found.add(name, {"vector": column.longest}, f"{decision.why}{missing}")
    elif decision.kind == "number":
        logarithm = has_long_tail(decision.numbers)
        keys = {"numeric": True, "transform": transform_of(decision.numbers, logarithm=logarithm)}
        why = "; long tail" if logarithm else ""
        found.add(name, keys, f"{decision.why}, {column.low:g} to {column.high:g}{missing}{why}")
        if both and is_curved(decision.numbers):
            transform = transform_of(decision.numbers, logarithm=not logarithm)
            other, why = ("plain", "without") if logarithm else ("log", "with")
            keys = {"numeric": True, "column": name, "transform": transform}
            found.add(f"{name}_{other}", keys, f"the same {why} a logarithm: too few rows to learn the curve")
        boundaries = boundaries_of(decision.numbers, bins) if bins else []
        if boundaries:
            keys = {"dim": dim_of(len(boundaries)), "column": name, "boundaries": boundaries}
            found.add(f"{name}_bins", keys, "the same in bins, to learn steps and peaks")
        if decision.also_id:
            found.add(f"{name}_id", {"dim": dim_of(distinct), "column": name}, f"the same as an id, {count}")


def has_long_tail(values: Any) -> bool:
    """Return whether numbers, float64[n], suit a logarithmic scale: skewness above 2, none negative."""
    values = values[~np.isnan(values)]
    deviation = values.std()
    if not deviation or values.min() < 0:
        return False
    return bool(np.mean(((values - values.mean()) / deviation) ** 3) > 2)


def is_curved(values: Any) -> bool:
    """Return whether the logarithms of numbers, float64[n], are not just shifted and scaled numbers."""
    values = values[~np.isnan(values)]
    if values.min() < 0 or not values.std():
        return False
    return bool(np.corrcoef(values, np.log1p(values))[0, 1] < _STRAIGHT)


def transform_of(values: Any, *, logarithm: bool) -> Any:
    """Return the transform of numbers, float64[n]."""
    values = values[~np.isnan(values)]
    if logarithm:
        values = np.log1p(values)
    if not values.std():
        return "standardize"
    clip = np.abs(values - values.mean()).max() > 5 * values.std()
    return [*(["log1p"] if logarithm else []), "standardize", *([{"clip": [-5, 5]}] if clip else [])]


def boundaries_of(values: Any, bins: int) -> list[float]:
    """Return ascending boundaries of bins: one bin per value if values are few, else equal row counts."""
    distinct, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    if len(distinct) <= max(3, min(_MOST_BINS, 2 * bins)):
        cuts = distinct[1:]
    else:
        # A value more frequent than a bin counts as one bin; the others share the rest.
        below = np.cumsum(np.minimum(counts, counts.sum() / bins))
        places = np.searchsorted(below, below[-1] * np.arange(1, bins) / bins, side="right")
        cuts = np.unique(distinct[places[places > 0]])
    return sorted({float(f"{cut:.{_digits(distinct)}g}") for cut in cuts})


def _digits(distinct: Any) -> int:
    """Return the digits for boundaries of ascending numbers: six, or more if the numbers are close."""
    largest, spread = np.abs(distinct[[0, -1]]).max(), distinct[-1] - distinct[0]
    if not spread:
        return 6
    return int(min(17, max(6, 4 + np.ceil(np.log10(largest / spread) + 1))))


def bins_for(rows: int, columns: int, numbers: int) -> tuple[int, int]:
    """Return (bins per number, how many of the numbers get bins)."""
    room = max(_MOST_PARTS - 7 * columns, 100)
    bins = max(4, min(_MOST_BINS, rows // 200, room // max(1, numbers) - 8))
    return bins, min(numbers, room // (bins + 8))
