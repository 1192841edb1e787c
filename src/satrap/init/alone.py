"""How well one column alone tells the label: what does so nearly without error is likely a copy of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from satrap.data.columns import is_text, to_floats
from satrap.data.encode import MISSING, Missing
from satrap.data.hashing import hash_ids
from satrap.init.profile import Column, flat
from satrap.metrics.auc import exact_auc

_MISSING = Missing(MISSING, 0)


def auc_alone(column: Column, sample: pa.Array, target: Any) -> float:
    """Return the AUC, at least 0.5, of the label by this column alone; target is float64[n] of 0 and 1.

    Each half of the rows is scored by the mean label of its value in the other half, which serves categories;
    numbers are also scored by themselves, in both directions. NaN if the sample has one class only.
    """
    if column.is_list or column.is_nested or not 0 < target.sum() < len(target):
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
