"""What one column alone tells of the label: what does so nearly without error is likely a copy of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from satrap.data.columns import is_text, to_floats
from satrap.data.encode import MISSING, Missing
from satrap.data.hashing import hash_ids
from satrap.init.profile import Column, flat
from satrap.metrics.auc import exact_auc
from satrap.schema import MISSING_ID

_MISSING = Missing(MISSING, 0)
_LEAST, _MOST_VALUES = 50, 100
"""Rows that say something when they have one label; values of a category that are looked at one by one."""
_USUAL = 2 / 3
"""Share of rows with a label above which values that have no other are usual: children earn nothing."""
_CHANCE = 1e-6


def auc_alone(column: Column, sample: pa.Array, target: Any) -> float:
    """Return the AUC, at least 0.5, of the label by this column alone; target is float64[n] of 0 and 1.

    Each half of the rows is scored by the mean label of its value in the other half, which serves categories;
    numbers are also scored by themselves, in both directions. NaN if the sample has one class only.
    """
    if column.is_list or column.unusable or not 0 < target.sum() < len(target):
        return float("nan")
    array = flat(sample)
    found = [_auc(_means(hash_ids(array, 0, _MISSING.ids), target), target)]
    if column.numbers and (is_text(array.type) or pa.types.is_primitive(array.type)):
        values = to_floats(array, pa.array([*MISSING, *column.odd]))
        there = ~np.isnan(values)
        if 0 < target[there].sum() < there.sum():
            by_value = _auc(_ranks(values[there]), target[there])
            found.append(max(by_value, 1 - by_value) * there.mean() + 0.5 * (1 - there.mean()))
    return max(0.5, *found)


def one_label(column: Column, sample: pa.Array, target: Any, *, each: bool, columns: int) -> str | None:
    """Return what says that some values of a column occur with one label only; None if nothing does.

    Looked at are the rows that have another value than the most frequent one (of a list: any value), which
    finds what is filled in only once the label is known, such as `purchased` or `revenue` for `clicked`. With
    `each`, and of at most 100 values, also the rows of each value. They are at least 50.

    By chance, n rows have all the same label, one of the share p, with probability p**n. In N rows of
    `columns` columns there are at most columns * (N / 50 + 1) such groups, so that one of them is pure by
    chance with probability columns * (N / 50 + 1) * p**n: at most 1e-6 is told. With p = 1/2, 10 columns and
    100,000 rows, 50 rows have 2e-11. A label with p above 2/3 is not told of: that a value never meets the
    rare label is usual.

    Args:
        column, sample: facts and values.
        target: float64[n] of 0 and 1.
        each: whether to look at single values. An id, such as a user, may have one label and be no copy.
        columns: how many columns are looked at.
    """
    rows, share = len(target), target.mean()
    if column.unusable or not 0 < share < 1:
        return None
    array = flat(sample)
    ids = _lengths(array) if column.is_list else hash_ids(array, 0, _MISSING.ids)
    values, first, codes, counts = np.unique(ids, True, True, True)
    ones, often = np.bincount(codes, target), int(counts.argmax())
    groups = [(often, False, rows - counts[often], ones.sum() - ones[often])]
    if each and not column.is_list and column.distinct.count <= _MOST_VALUES:
        groups += [(code, True, counts[code], ones[code]) for code in range(len(values))]
    few = np.log(_CHANCE / (columns * (rows / _LEAST + 1)))
    for code, has, count, found in groups:
        p = share if found else 1 - share
        if count >= _LEAST and found in (0, count) and p <= _USUAL and count * np.log(p) <= few:
            missing = values[code] == (0 if column.is_list else MISSING_ID)
            named = not missing and not column.is_list
            value = f"value {str(array[int(first[code])])[:40]!r}" if named else "a value"
            which = f"{'without' if has == missing else 'with'} {value}"
            return f"the label is {int(found > 0)} in all {int(count):,} rows {which}, in {p:.0%} of all rows"
    return None


def _lengths(array: pa.Array) -> Any:
    """Return 1 for lists with values, 0 for others."""
    return pc.greater(pc.list_value_length(array).fill_null(0), 0).to_numpy(zero_copy_only=False).astype(int)


def _means(ids: Any, target: Any) -> Any:
    """Return the mean label of each row's value among the rows of the other half, shrunk to the mean."""
    _, codes = np.unique(ids, return_inverse=True)
    half = np.arange(len(codes)) % 2
    scores, mean = np.empty(len(codes)), target.mean()
    for part in (0, 1):
        other, count = half != part, codes.max() + 1
        sums = np.bincount(codes[other], target[other], count)
        rows = np.bincount(codes[other], minlength=count)
        scores[~other] = ((sums + mean) / (rows + 1))[codes[~other]]
    return scores


def _ranks(values: Any) -> Any:
    """Return the rank of each value, which float32 holds where it might not hold the value."""
    return np.unique(values, return_inverse=True)[1]


def _auc(scores: Any, target: Any) -> float:
    return exact_auc(scores.astype(np.float32), target > 0, np.ones(len(target), np.float32))
