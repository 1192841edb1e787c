"""`BinaryMetrics`: metrics of predicted probabilities against 0/1 labels, for one or more labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, DataError
from satrap.metrics.auc import OCTAVES, Bools, Floats, Ids
from satrap.metrics.label import LabelMetrics, Samples
from satrap.runtime.arguments import checked

Array = npt.NDArray[Any]
MEANS = ("auc", "logloss", "ne", "auc_error_bound", "gauc")
"""Metrics that, with several labels, are also averaged over the labels that have them."""


@checked()
class BinaryMetrics:
    """Streaming metrics of binary predictions, in bounded memory, mergeable between workers.

    ```python
    metrics = BinaryMetrics(["clicked"])
    for labels, probabilities in batches:
        metrics.update(labels, probabilities)
    metrics.compute()["auc"]
    ```

    For each label, `compute` returns

    - `auc`: area under the ROC curve; ties count one half. Exact up to `exact_limit` samples. Beyond that it
      comes from a histogram, with an error of at most `auc_error_bound` (0 while exact): typically 1e-5 with
      the default bins, and the true error is far smaller.
    - `logloss`: mean cross-entropy in nats, probabilities clipped to [1.2e-7, 1 - 1.2e-7].
    - `ne`: normalised entropy, logloss over the logloss of predicting the base rate; below 1 is better than
      knowing the base rate alone (He et al., "Practical Lessons from Predicting Clicks", ADKDD 2014).
    - `calibration`: mean prediction over base rate; 1 is perfect.
    - `samples`, `positives`: counts; weights are ignored.
    - with `grouped`: `gauc`, the AUC within each group averaged by the groups' weights; `gauc_groups`,
      `gauc_skipped`: groups used, and groups skipped because they have only one class; `gauc_share`: 1 while
      exact, else the share of groups (chosen by hash of the group) whose samples are kept.

    With several labels, keys are such as `income/auc`; `auc`, `logloss`, `ne` and `gauc` are then also
    returned as means over the labels. Undefined values (such as AUC with only one class) are NaN.

    Memory per sample and label is 9 bytes, 17 with groups, up to `exact_limit`. The histogram takes 16 bytes
    per bin and label, but only for bins in use. For a progress line use a small `exact_limit`, and `reset` at
    each new window.

    Args:
        names: names of the labels.
        exact_limit: number of samples up to which AUC and grouped AUC are exact, default 4,000,000.
        bins: bins of the histogram beyond that, a power of two from 64, default 524,288. Doubling it halves
            the error bound.
        grouped: compute grouped AUC; `update` then needs `groups`.

    Raises:
        ConfigError: no or repeated names, a negative limit, or an invalid number of bins.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        exact_limit: int = 4_000_000,
        bins: int = 1 << 19,
        grouped: bool = False,
    ) -> None:
        if isinstance(names, str) or not names or len(set(names)) != len(names):
            raise ConfigError(f"label names must be a list of unique names, got {names!r}")
        if exact_limit < 0:
            raise ConfigError(f"exact_limit must be >= 0, got {exact_limit}")
        if not 2 * OCTAVES <= bins <= 2**29 or bins & (bins - 1):
            raise ConfigError(f"bins must be a power of two from {2 * OCTAVES} to 2^29, got {bins}")
        self.names, self.grouped = tuple(names), grouped
        self._settings = (exact_limit, bins, grouped)
        self.reset()

    def reset(self) -> None:
        """Remove all samples."""
        self._labels = {name: LabelMetrics(*self._settings) for name in self.names}

    def update(
        self,
        labels: Array,
        probabilities: Array,
        *,
        mask: Array | None = None,
        weights: Array | None = None,
        groups: Array | None = None,
    ) -> None:
        """Add a batch of n samples; the arrays are copied.

        Args:
            labels: [n, labels] of 0 and 1, or [n] with one label.
            probabilities: float32[n, labels] in [0, 1] (not logits), or [n] with one label.
            mask: bool[n, labels], False where a label is unknown.
            weights: [n] >= 0; default 1.
            groups: uint64[n], used if `grouped`.

        Raises:
            DataError: shapes differ, labels other than 0 and 1, predictions outside [0, 1], negative weights,
                or groups missing. The metrics are then unchanged.
        """
        truth, predictions = self._matrix(labels, "labels"), self._matrix(probabilities, "probabilities")
        size = len(truth)
        if self.grouped and groups is None:
            raise DataError("grouped AUC needs groups", fix="set group in the schema to a column")
        group_ids: Ids = np.array(groups if self.grouped else [], np.uint64)
        weight: Floats = np.ones(size, np.float32) if weights is None else np.array(weights, np.float32)
        valid = (
            np.ones(truth.shape, np.bool_) if mask is None else self._matrix(mask, "mask").astype(np.bool_)
        )
        if not (predictions.shape == truth.shape and len(weight) == size == weight.size):
            raise DataError(f"{truth.shape} labels, {predictions.shape} predictions, {weight.shape} weights")
        if valid.shape != truth.shape or (self.grouped and len(group_ids) != size):
            raise DataError(f"the shape of mask or groups does not match labels of shape {truth.shape}")
        added = [
            _select(truth[:, i], predictions[:, i], weight, group_ids, valid[:, i])
            for i in range(len(self.names))
        ]
        for metrics, samples in zip(self._labels.values(), added, strict=True):
            metrics.add(samples)

    def merge(self, other: BinaryMetrics) -> None:
        """Add all samples of `other`, which does not change.

        Raises:
            ConfigError: names or arguments differ.
        """
        if (self.names, self._settings) != (other.names, other._settings):
            raise ConfigError("cannot merge metrics with different labels or arguments")
        for name, metrics in self._labels.items():
            metrics.merge(other._labels[name])

    def compute(self) -> dict[str, float]:
        """Return the metrics by name, see the class; does not remove samples."""
        values = {name: metrics.compute() for name, metrics in self._labels.items()}
        if len(values) == 1:
            return values[self.names[0]]
        means = {
            key: mean([v[key] for v in values.values()]) for key in MEANS if key in values[self.names[0]]
        }
        return means | {f"{name}/{key}": v for name, items in values.items() for key, v in items.items()}

    def state(self) -> dict[str, Array]:
        """Return the state as plain arrays, keys `label/array`, for another process or a checkpoint."""
        return {
            f"{name}/{key}": array
            for name, metrics in self._labels.items()
            for key, array in metrics.state().items()
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Replace the state by a `state` of metrics with the same names and arguments."""
        for name, metrics in self._labels.items():
            metrics.restore({key: state[f"{name}/{key}"] for key in metrics.state()})

    def _matrix(self, values: Array, what: str) -> Floats:
        matrix = np.asarray(values, np.float32)
        if matrix.ndim == 1 and len(self.names) == 1:
            matrix = matrix[:, None]
        if matrix.ndim != 2 or matrix.shape[1] != len(self.names):
            raise DataError(f"{what} must be [n, {len(self.names)}], got {list(matrix.shape)}")
        return matrix


def _select(truth: Floats, predictions: Floats, weights: Floats, groups: Ids, known: Bools) -> Samples:
    """Return copies of the known samples of one label, checked."""
    if not known.all():
        truth, predictions, weights = truth[known], predictions[known], weights[known]
        groups = groups[known] if len(groups) else groups
    labels = truth == 1
    if not (labels | (truth == 0)).all():
        raise DataError("labels must be 0 or 1", why="AUC and logloss are defined for two classes")
    if len(truth) and (predictions.min() < 0 or predictions.max() > 1):
        raise DataError("predictions outside [0, 1]", fix="pass probabilities: sigmoid of the logits")
    if len(truth) and weights.min() < 0:
        raise DataError("negative sample weights")
    # The copy turns -0.0 into 0.0, because AUC uses the bits of predictions.
    return Samples(predictions + np.float32(0), labels, weights, groups)


def mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are numbers; NaN without any."""
    defined = [value for value in values if value == value]
    return sum(defined) / len(defined) if defined else float("nan")
