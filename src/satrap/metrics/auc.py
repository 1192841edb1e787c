"""Area under the ROC curve: exact by sorting, per group, and from a histogram with an error bound.

AUC is the probability that a positive scores higher than a negative; ties count one half (Hanley and McNeil,
Radiology 1982). With weights, a pair counts as the product of its two weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from satrap.runtime.numba_cache import compiled

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.uint64]

OCTAVES = 32
"""The histogram resolves probabilities down to 2^-33, and up to 1 - 2^-33."""

LOWEST = int(np.float32(2.0**-33).view(np.int32))

BLOCK = 1 << 15
"""Samples to process at a time, so that intermediate arrays stay in the cache."""


def blocks(predictions: Floats, labels: Bools, weights: Floats) -> Iterator[tuple[Floats, Bools, Floats]]:
    """Yield the samples `[n]` in slices of at most `BLOCK`."""
    for start in range(0, len(predictions), BLOCK):
        part = slice(start, start + BLOCK)
        yield predictions[part], labels[part], weights[part]


class GroupedAUC(NamedTuple):
    """AUC within groups: `value` averaged by group weight, groups used, groups skipped (one class only)."""

    value: float
    groups: int
    skipped: int


def exact_auc(predictions: Floats, labels: Bools, weights: Floats) -> float:
    """Return the AUC of samples `[n]`; NaN if a class has no weight. Sorts, O(n log n)."""
    total, weight, _, _ = _grouped(*_sorted(_keys(predictions, labels), weights))
    return _ratio(total, weight)


def grouped_auc(groups: Ids, predictions: Floats, labels: Bools, weights: Floats) -> GroupedAUC:
    """Return the AUC within each group of samples `[n]`, averaged by the groups' weights.

    Groups with only one class have no AUC; they are skipped and counted. NaN if all groups are skipped. Known
    as GAUC: Zhou et al., "Deep Interest Network", KDD 2018, section 6.3.
    """
    order = np.argsort(groups)
    groups = groups[order]
    first = np.ones(len(groups), np.bool_)
    first[1:] = groups[1:] != groups[:-1]
    keys = _keys(predictions, labels)[order] | (np.cumsum(first, dtype=np.uint64) << np.uint64(32))
    total, weight, used, skipped = _grouped(*_sorted(keys, weights[order]))
    return GroupedAUC(_ratio(total, weight), used, skipped)


def new_histogram(bins: int) -> Doubles:
    """Return float64[2, bins] of zeros: weight of negatives, weight of positives."""
    return np.zeros((2, bins))


def add_to_histogram(histogram: Doubles, predictions: Floats, labels: Bools, weights: Floats) -> None:
    """Add samples `[n]` with probabilities in [0, 1] to the histogram in place.

    The bin comes from the bit pattern of min(p, 1 - p): logarithmic on both sides of one half, nearly uniform
    in the logit. So very small and very large probabilities are resolved as finely as those in the middle; a
    uniform grid over [0, 1] would put them into one bin. The bin never decreases as p grows.
    """
    # A bin keeps a float's exponent and the first of the 23 bits of its mantissa.
    shift = 23 - int(math.log2(histogram.shape[1] // (2 * OCTAVES)))
    for p, y, w in blocks(predictions, labels, weights):
        # 1 - p is exact for p >= 0.5.
        distances = np.minimum(p, np.float32(1) - p).view(np.int32)
        _add(histogram[0], histogram[1], p, distances, y, w, shift)


def binned_auc(histogram: Doubles) -> tuple[float, float]:
    """Return (AUC, bound on its error) of a histogram; NaN for both if a class has no weight.

    Pairs in different bins are ordered correctly. A pair in the same bin counts one half, an error of at most
    one half. So the error is at most `sum over bins of p_b * n_b / 2`, divided by `P * N`, where p_b and n_b
    are the weights of positives and negatives in a bin and P, N their sums.
    """
    negative, positive = histogram
    below = np.cumsum(negative) - negative
    pairs = float(positive.sum()) * float(negative.sum())
    area = float(positive @ (below + negative / 2))
    return _ratio(area, pairs), _ratio(float(positive @ negative) / 2, pairs)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.nan


def _keys(predictions: Floats, labels: Bools) -> Ids:
    """Return 32-bit integers that sort like the predictions, with the label in the lowest bit."""
    # The sign bit of a probability is 0, so its bits sort like the number, and the shift loses no bit.
    return (predictions.view(np.uint32).astype(np.uint64) << np.uint64(1)) | labels


def _sorted(keys: Ids, weights: Floats) -> tuple[Ids, Floats]:
    if len(weights) == 0 or weights.min() == weights.max():
        return np.sort(keys), weights
    order = np.argsort(keys)
    return keys[order], weights[order]


@compiled(nogil=True)
def _grouped(keys: Ids, weights: Floats) -> tuple[float, float, int, int]:
    """Return (sum of AUC * weight, sum of weight, groups used, groups skipped) over sorted keys.

    A key is, from the highest bit: 32 bits of the group's number, 31 of the prediction, the label.
    """
    total = total_weight = 0.0
    used = skipped = 0
    i = 0
    while i < len(keys):
        group = keys[i] >> 32
        area = positive = negative = 0.0
        while i < len(keys) and keys[i] >> 32 == group:
            # A run of equal predictions: its negatives come first.
            prediction = keys[i] >> 1
            below = negative
            tied = 0.0
            while i < len(keys) and keys[i] >> 1 == prediction:
                if keys[i] & 1:
                    tied += weights[i]
                else:
                    negative += weights[i]
                i += 1
            area += tied * (below + negative) / 2
            positive += tied
        if positive > 0 and negative > 0:
            total += (positive + negative) * (area / (positive * negative))
            total_weight += positive + negative
            used += 1
        else:
            skipped += 1
    return total, total_weight, used, skipped


@compiled(nogil=True)
def _add(
    negative: Doubles,
    positive: Doubles,
    predictions: Floats,
    distances: npt.NDArray[np.int32],
    labels: Bools,
    weights: Floats,
    shift: int,
) -> None:
    last = len(negative) - 1
    for i in range(len(predictions)):
        code = np.uint64(min(max(distances[i] - LOWEST, 0) >> shift, last // 2))
        place = code if predictions[i] < 0.5 else np.uint64(last) - code
        if labels[i]:
            positive[place] += weights[i]
        else:
            negative[place] += weights[i]
