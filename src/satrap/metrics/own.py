"""User metrics: functions of the labels and predictions of all samples, or torchmetrics."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, TrainingError
from satrap.metrics.reservoir import KeyReservoir
from satrap.runtime.arguments import checked
from satrap.runtime.user_code import place_of
from satrap.settings.training import Metric, is_metric_object, metric_name

Array = npt.NDArray[Any]
ARGUMENTS = ("labels", "predictions", "weights", "groups")


@checked()
class OwnMetrics:
    """Keeps samples, and computes the user's metrics from them.

    ```python
    def precision_at_100(labels, predictions):
        return labels[np.argsort(-predictions)[:100]].mean()

    def error(labels, predictions, weights):
        return np.average(np.abs(labels - predictions), weights=weights)

    error.higher_is_better = False
    ```

    A metric is a function with a unique name. It is called once per evaluation with the arguments that it
    names, for all samples in any order, and returns a number. The arguments are:

    - `labels`: float32[n], float64[n] with a regression label; [n, labels] if the schema has several, NaN
      if a label is unknown.
    - `predictions`: of the same type: probabilities, or numbers in the units of a regression label;
      [n, outputs] with several outputs.
    - `weights`: float32[n], 1 without a weight column.
    - `groups`: uint64[n], ids of the group column. Sort by it to bring the samples of a group together.

    An object with `update(predictions, labels)`, `compute()` and `reset()`, such as a torchmetrics object, is
    also a metric, as is a class that can be constructed without arguments. A copy of the object gets tensors
    of all samples; labels that are whole numbers are int64. Its name is its `__name__`, or its class name.

    Up to `limit` samples are kept. With more, half of the groups (or of the samples without groups), chosen
    by hash, are dropped at a time; `own_share` is the share that is kept, 1 while all are. The samples of
    all workers are merged, and process 0 computes the metrics. Errors of a function propagate.

    Args:
        functions: the metrics.
        widths: number of labels, and of outputs.
        exact: labels and outputs are float64.
        grouped: `update` gets groups.
        limit: most samples to keep; a sample takes 12 bytes and 4 per label and output.

    Raises:
        ConfigError: no metric, a duplicate or missing name, an unknown argument, or the argument groups
            without a group column.
    """

    def __init__(
        self,
        functions: Sequence[Metric],
        widths: tuple[int, int],
        *,
        grouped: bool,
        limit: int,
        exact: bool = False,
    ) -> None:
        self.functions = {metric_name(metric): _made(metric) for metric in functions}
        if len(self.functions) < len(functions):
            raise ConfigError(
                "two metrics have the same name", fix="rename one of them, or set its attribute __name__"
            )
        self.arguments = {name: _arguments(name, metric, grouped) for name, metric in self.functions.items()}
        self.widths, self.grouped, self.limit = widths, grouped, limit
        self._type = np.float64 if exact else np.float32
        self.reset()

    def reset(self) -> None:
        """Remove all samples."""
        labels, predictions = (np.empty((0, width), self._type) for width in self.widths)
        weights, keys = np.empty(0, np.float32), np.empty(0, np.uint64)
        empty = {"labels": labels, "predictions": predictions, "weights": weights, "keys": keys}
        self._samples, self._seen = KeyReservoir(empty, "keys", self.limit), 0

    def update(
        self, labels: Array, predictions: Array, mask: Array | None, weights: Array, groups: Array | None
    ) -> None:
        """Add n samples, see `Metrics.update`; samples without any known label are left out."""
        keys = groups if self.grouped else np.arange(self._seen, self._seen + len(labels))
        self._seen += len(labels)
        valid = np.ones(labels.shape, np.bool_) if mask is None else np.asarray(mask, np.bool_)
        known = np.where(valid, labels, self._type("nan"))
        columns = {"labels": known, "predictions": predictions, "weights": weights, "keys": keys}
        rows = valid.any(axis=1)
        self._samples.add({name: np.asarray(column)[rows] for name, column in columns.items()})

    def merge(self, other: OwnMetrics) -> None:
        """Add all samples of `other`, which has the same metrics and does not change."""
        self._samples.merge(other._samples)

    def compute(self) -> dict[str, float]:
        """Return the metrics by name, and `own_share`.

        Raises:
            TrainingError: a function returns something other than a number.
        """
        samples = self._samples.rows()
        labels, predictions = samples["labels"], samples["predictions"]
        values = {
            "labels": labels[:, 0] if self.widths[0] == 1 else labels,
            "predictions": predictions[:, 0] if self.widths[1] == 1 else predictions,
            "weights": samples["weights"],
            "groups": samples["keys"],
        }
        metrics = {
            name: _number(function, _called(function, {key: values[key] for key in self.arguments[name]}))
            for name, function in self.functions.items()
        }
        return metrics | {"own_share": self._samples.share}

    def state(self) -> dict[str, Array]:
        """Return the state as arrays."""
        return self._samples.state()

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore the result of `state`."""
        self._samples.restore(state)


def _made(metric: Metric) -> Metric:
    if not isinstance(metric, type):
        return metric
    try:
        created: Metric = metric()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"metrics: {metric.__name__} cannot be constructed without arguments: {error}",
            fix=f"create an object in a file, such as my_metric = {metric.__name__}(...), and name that",
        ) from error
    return created


def _called(metric: Metric, given: Mapping[str, Array]) -> Any:
    if not is_metric_object(metric):
        return metric(**given)
    import torch  # takes seconds, and `satrap init` does not need it

    fresh: Any = copy.deepcopy(metric)  # the user's object stays unchanged
    fresh.reset()
    labels = given["labels"]
    whole = np.array_equal(labels, np.floor(labels))
    fresh.update(
        torch.from_numpy(given["predictions"].copy()),
        torch.from_numpy(labels.astype(np.int64 if whole else given["predictions"].dtype)),
    )
    return fresh.compute()


def _arguments(name: str, function: Metric, grouped: bool) -> list[str]:
    """Return the `ARGUMENTS` that a function takes."""
    if is_metric_object(function):
        return ["labels", "predictions"]
    names = list[str]()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ARGUMENTS and (parameter.name != "groups" or grouped):
            names.append(parameter.name)
        elif parameter.default is parameter.empty and parameter.name == "groups":
            raise ConfigError(
                f"metrics: {name} takes groups, but the schema has no group column",
                fix="set group in the schema to a column",
            )
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise ConfigError(
                f"metrics: {name} has an unknown argument {parameter.name!r}",
                fix=f"use {', '.join(ARGUMENTS)}, and give other arguments a default",
            )
    return names


def _number(function: Metric, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor of several numbers
        kind = type(value).__name__
        raise TrainingError(
            f"the metric {metric_name(function)} returned a value of type {kind}, not a number",
            where=place_of(function),
            fix="return one number, for example losses.mean()",
        ) from error
