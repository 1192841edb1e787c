"""`Metrics`: the metrics of all labels of a schema, by the kind of each label."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, DataError
from satrap.metrics.binary import MEANS, BinaryMetrics, mean
from satrap.metrics.classes import ClassMetrics
from satrap.metrics.implicit import ImplicitMetrics
from satrap.metrics.own import OwnMetrics
from satrap.metrics.ranking import GroupRankingMetrics, RankingMetrics
from satrap.metrics.regression import RegressionMetrics
from satrap.runtime.arguments import checked
from satrap.schema import Label
from satrap.settings.ranking import Ranking
from satrap.settings.training import Metric

Array = npt.NDArray[Any]
OWN, RANKING = "/own/", "/ranking/"
"""Prefixes of the keys of the samples of user metrics and ranking metrics; no label has such a name."""

Part = BinaryMetrics | RegressionMetrics | ClassMetrics | ImplicitMetrics


@checked()
class Metrics:
    """Streaming metrics of predictions, in bounded memory, mergeable between workers.

    ```python
    metrics = satrap.metrics.Metrics(schema.labels)
    for batch, predictions in scored:
        metrics.update(batch.labels, predictions, mask=batch.label_mask, weights=batch.weights)
    metrics.compute()["rmse"]
    ```

    For the metrics of a label see `BinaryMetrics`, `RegressionMetrics` and `ClassMetrics`. With several
    labels, keys are such as `income/auc`. Then `auc`, `logloss`, `ne`, `gauc`, `accuracy` and the ranking
    metrics are also returned as means over the labels that have them. Unless all labels are binary, `loss` is
    the mean over all labels of their loss, which is the logloss of binary and multiclass labels.

    Args:
        labels: of the schema, at least one.
        exact_limit, bins, grouped: of binary labels, see `BinaryMetrics`; other labels have no grouped
            metrics. `exact_limit` and `grouped` also apply to `own`.
        own: user metrics, see `OwnMetrics`.
        ranking: ranking metrics of binary labels within groups, see `GroupRankingMetrics`, or among items,
            see `rank`; `exact_limit` applies.

    Raises:
        ConfigError: as `OwnMetrics`, or a metric of `own` has the name of another metric.
    """

    def __init__(
        self,
        labels: Sequence[Label],
        *,
        exact_limit: int = 4_000_000,
        bins: int = 1 << 19,
        grouped: bool = False,
        own: Sequence[Metric] = (),
        ranking: Ranking | None = None,
    ) -> None:
        self.labels, self.ranking = tuple(labels), ranking
        self._settings: dict[str, Any] = {"exact_limit": exact_limit, "bins": bins, "grouped": grouped}
        self._parts = {label.name: self._part(label) for label in self.labels}
        kind = RankingMetrics if ranking is not None and ranking.of_items else GroupRankingMetrics
        self._ranked: dict[str, Any] = {
            label.name: kind(ranking.at, limit=exact_limit)
            for label in self.labels
            if ranking is not None and label.kind == "binary"
        }
        self._functions, self._own = tuple(own), None if not own else self._own_metrics(own)

    def _part(self, label: Label) -> Part:
        if label.implicit:
            return ImplicitMetrics()
        if label.kind == "regression":
            return RegressionMetrics(label)
        return ClassMetrics() if label.kind == "multiclass" else BinaryMetrics([label.name], **self._settings)

    def _own_metrics(self, functions: Sequence[Metric]) -> OwnMetrics:
        widths = len(self.labels), sum(label.outputs for label in self.labels)
        grouped, limit = self._settings["grouped"], self._settings["exact_limit"]
        exact = any(label.kind == "regression" for label in self.labels)
        metrics = OwnMetrics(functions, widths, grouped=grouped, limit=limit, exact=exact)
        if taken := sorted(metrics.functions.keys() & self._compute().keys()):
            raise ConfigError(
                f"metrics: {taken[0]} is the name of a built-in metric", fix="rename the function"
            )
        return metrics

    def empty(self, *, ranking: bool = True) -> Metrics:
        """Return metrics of the same labels without samples, and without ranking metrics if not `ranking`."""
        ranked = self.ranking if ranking else None
        return Metrics(self.labels, **self._settings, own=self._functions, ranking=ranked)

    def update(
        self,
        labels: Array,
        predictions: Array,
        *,
        mask: Array | None = None,
        weights: Array | None = None,
        groups: Array | None = None,
    ) -> None:
        """Add a batch of n samples; the arrays are copied.

        Args:
            labels: [n, labels], as in `Batch.labels`.
            predictions: [n, outputs]: probabilities, and numbers in the units of regression labels.
            mask: bool[n, labels], False where a label is unknown.
            weights: [n] >= 0; default 1.
            groups: uint64[n], for grouped AUC and ranking metrics.

        Raises:
            DataError: as `BinaryMetrics.update`.
        """
        weight = np.ones(len(labels), np.float32) if weights is None else weights
        column = 0
        for i, label in enumerate(self.labels):
            chosen = predictions[:, column : column + label.outputs]
            column += label.outputs
            valid = None if mask is None else mask[:, i]
            part, rows = self._parts[label.name], slice(None) if valid is None else valid
            if isinstance(part, BinaryMetrics):
                part.update(labels[:, i], chosen, mask=valid, weights=weight, groups=groups)
            else:
                part.update(labels[rows, i], chosen[rows], weight[rows])
            ranked = self._ranked.get(label.name)
            if isinstance(ranked, GroupRankingMetrics):
                if groups is None:
                    raise DataError("ranking needs groups", fix="set group in the schema to a column")
                ranked.update(groups[rows], chosen[rows, 0], labels[rows, i] == 1)
        if self._own is not None:
            self._own.update(labels, predictions, mask, weight, groups)

    def rank(self, queries: Array, items: Array, ranks: Array, tied: Array) -> None:
        """Add relevant items of the one label, ranked among all items, see `RankingMetrics.update`."""
        [ranked] = self._ranked.values()
        ranked.update(queries, items, ranks, tied=tied)

    def reset(self) -> None:
        """Remove all samples."""
        for part in (*self._parts.values(), *self._ranked.values()):
            part.reset()
        if self._own is not None:
            self._own.reset()

    def merge(self, other: Metrics) -> None:
        """Add all samples of `other`, which has the same labels and does not change."""
        for name, part in self._parts.items():
            part.merge(other._parts[name])  # type: ignore[arg-type]
        for name, ranked in self._ranked.items():
            ranked.merge(other._ranked[name])
        if self._own is not None and other._own is not None:
            self._own.merge(other._own)

    def compute(self) -> dict[str, float]:
        """Return the metrics by name, see the class; does not remove samples."""
        return self._compute() | (self._own.compute() if self._own else {})

    def _compute(self) -> dict[str, float]:
        values = {name: part.compute() for name, part in self._parts.items()}
        for name, ranked in self._ranked.items():
            values[name] |= ranked.compute()
        if len(values) == 1:
            return next(iter(values.values()))
        means = {
            key: mean([items[key] for items in values.values() if key in items])
            for key in (*MEANS, "accuracy", *(self.ranking.names if self.ranking else ()))
            if any(key in items for items in values.values())
        }
        if criterion(self.labels) == "loss":
            losses = [items.get("loss", items.get("logloss", math.nan)) for items in values.values()]
            means["loss"] = sum(losses) / len(losses)
        return means | {f"{name}/{key}": v for name, items in values.items() for key, v in items.items()}

    def state(self) -> dict[str, Array]:
        """Return the state as plain arrays, for another process or a checkpoint."""
        parts = {
            key if isinstance(part, BinaryMetrics) else f"{name}/{key}": array
            for name, part in self._parts.items()
            for key, array in part.state().items()
        }
        for name, ranked in self._ranked.items():
            parts |= {f"{RANKING}{name}/{key}": array for key, array in ranked.state().items()}
        return parts | {
            f"{OWN}{key}": array for key, array in (self._own.state() if self._own else {}).items()
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Replace the state by a `state` of metrics of the same labels."""
        for name, part in self._parts.items():
            inner = state if isinstance(part, BinaryMetrics) else {"totals": state[f"{name}/totals"]}
            part.restore(inner)
        for name, ranked in self._ranked.items():
            ranked.restore(_below(f"{RANKING}{name}/", state))
        if self._own is not None:
            self._own.restore(_below(OWN, state))


def _below(prefix: str, state: Mapping[str, Array]) -> dict[str, Array]:
    return {key.removeprefix(prefix): array for key, array in state.items() if key.startswith(prefix)}


@checked()
def criterion(labels: Sequence[Label]) -> str:
    """Return the metric that ranks models: "auc", or a loss (lower is better)."""
    if all(label.kind == "binary" for label in labels):
        return "auc"
    return "logloss" if [label.kind for label in labels] == ["multiclass"] else "loss"
