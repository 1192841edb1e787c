"""Leakage check: a column that alone predicts the label almost perfectly is probably a copy of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from satrap.data.encode.encoder import MISSING, Missing
from satrap.data.encode.hashing import hash_ids
from satrap.data.formats.columns import is_text, to_floats
from satrap.metrics.auc import exact_auc
from satrap.schema import MISSING_ID
from satrap.tools.init.profile import Column, flat

_MISSING = Missing(MISSING, 0)
_LEAST, _MOST_VALUES = 50, 100
"""Least rows with a single label that are evidence; most values of a category that are checked one by one."""
_USUAL = 2 / 3
"""Share of a label above which values that occur only with this label are normal, such as no purchase."""
_CHANCE = 1e-6


def auc_alone(column: Column, sample: pa.Array, target: Any) -> float:
    """Return the AUC, at least 0.5, of the label predicted by this column alone; target: float64[n] of 0, 1.

    The rows of each half are scored by the mean label of their value in the other half, which suits
    categories; numbers are also scored by value, in both directions. NaN if the sample has a single class.
    """
    if column.is_list or column.unusable or not 0 < target.sum() < len(target):
        return float("nan")
    array = flat(sample)
    aucs = [_auc(_means(hash_ids(array, 0, _MISSING.ids), target), target)]
    if column.numbers and (is_text(array.type) or pa.types.is_primitive(array.type)):
        values = to_floats(array, pa.array([*MISSING, *column.odd]))
        there = ~np.isnan(values)
        if 0 < target[there].sum() < there.sum():
            by_value = _auc(_ranks(values[there]), target[there])
            aucs.append(max(by_value, 1 - by_value) * there.mean() + 0.5 * (1 - there.mean()))
    return max(0.5, *aucs)


def one_label(column: Column, sample: pa.Array, target: Any, *, each: bool, columns: int) -> str | None:
    """Return the evidence that some values of a column occur with one label only; None without evidence.

    The check covers the rows whose value is not the most frequent one (for a list: rows with any value). It
    detects columns that are filled in only once the label is known, such as `purchased` or `revenue` for
    `clicked`. With `each`, and at most 100 unique values, it also covers the rows of each value. A group must
    have at least 50 rows.

    If a label has share p, n rows all have that label by chance with probability p**n. N rows with `columns`
    columns have at most columns * (N / 50 + 1) such groups, so a group is pure by chance with probability
    at most columns * (N / 50 + 1) * p**n; evidence needs at most 1e-6. With p = 1/2, 10 columns and 100,000
    rows, 50 rows give 2e-11. Groups with a label of p above 2/3 do not count, because it is normal that a
    value never occurs with the rare label.

    Args:
        column, sample: facts about the column, and a sample of its values.
        target: float64[n] of 0 and 1.
        each: whether to check single values. An id such as a user may have one label without being a copy.
        columns: number of columns checked.
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
    for code, has, count, positives in groups:
        p = share if positives else 1 - share
        if count >= _LEAST and positives in (0, count) and p <= _USUAL and count * np.log(p) <= few:
            missing = values[code] == (0 if column.is_list else MISSING_ID)
            named = not missing and not column.is_list
            value = f"value {str(array[int(first[code])])[:40]!r}" if named else "a value"
            which = f"{'without' if has == missing else 'with'} {value}"
            label = int(positives > 0)
            return f"the label is {label} in all {int(count):,} rows {which}, in {p:.0%} of all rows"
    return None


def _lengths(array: pa.Array) -> Any:
    """Return 1 for non-empty lists, 0 for others."""
    return pc.greater(pc.list_value_length(array).fill_null(0), 0).to_numpy(zero_copy_only=False).astype(int)


def _means(ids: Any, target: Any) -> Any:
    """Return the mean label of each row's value in the other half of the rows, shrunk to the overall mean."""
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
    """Return the rank of each value; a rank fits in float32 where the value might not."""
    return np.unique(values, return_inverse=True)[1]


def _auc(scores: Any, target: Any) -> float:
    return exact_auc(scores.astype(np.float32), target > 0, np.ones(len(target), np.float32))
