"""Metrics of the user's own: functions of the labels and predictions of all samples, or torchmetrics."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from satrap.arguments import checked
from satrap.errors import ConfigError, TrainingError
from satrap.metrics.label import mix
from satrap.own_code import place_of

Array = npt.NDArray[Any]
Metric = Callable[..., Any]
"""A function of any of `ARGUMENTS`, by name, that returns a number; or an object of torchmetrics, or its
class. See `OwnMetrics`."""

ARGUMENTS = ("labels", "predictions", "weights", "groups")
RESERVED = ("epoch", "event", "step")
"""Names that lines of `metrics.jsonl` have beside metrics."""


class Kept(NamedTuple):
    """Samples, arrays [n] and [n, width]; `keys` decide which are left out when there are too many."""

    labels: Array
    predictions: Array
    weights: Array
    keys: Array


@checked()
class OwnMetrics:
    """Keeps samples, and computes from them metrics that the user has written.

    ```python
    def precision_at_100(labels, predictions):
        return labels[np.argsort(-predictions)[:100]].mean()

    def error(labels, predictions, weights):
        return np.average(np.abs(labels - predictions), weights=weights)

    error.higher_is_better = False
    ```

    A metric is a function with a name of its own. It gets those of the following that it names, once per
    evaluation, for all samples in no certain order, and returns a number:

    - `labels`: float32[n], float64[n] with a regression label; [n, labels] if the schema has several, NaN
      where one is not known.
    - `predictions`: of the same type: probabilities, or numbers in the units of a regression label;
      [n, outputs] if there are several outputs.
    - `weights`: float32[n], 1 without a weight column.
    - `groups`: uint64[n], ids of the group column; samples of a group are together, if they are sorted by it.

    An object with `update(predictions, labels)`, `compute()` and `reset()`, as those of torchmetrics, is a
    metric, too, and so is a class that makes one without arguments. A copy of it gets tensors of all samples;
    labels that are whole numbers are int64. Its name is that of its class, unless it has a `__name__`.

    Up to `limit` samples are kept. With more, groups chosen by hash are left out, half of them at a time, or
    single samples if there are no groups; `own_share` is the share that is kept, 1 while all are. Workers
    add their samples up, and process 0 computes. What the function raises is passed on.

    Args:
        functions: the metrics.
        widths: number of labels, and of outputs.
        exact: labels and outputs are float64.
        grouped: `update` gets groups.
        limit: most samples that are kept; a sample takes 12 bytes and 4 per label and output.

    Raises:
        ConfigError: no metric, a name that is taken or missing, an argument that no sample has, or one
            that names groups without a group column.
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
        self.functions = {metric_name(one): _made(one) for one in functions}
        if len(self.functions) < len(functions):
            raise ConfigError("two metrics have the same name", fix="rename one, or give it a __name__")
        self.arguments = {name: _arguments(name, one, grouped) for name, one in self.functions.items()}
        self.widths, self.grouped, self.limit = widths, grouped, limit
        self._type = np.float64 if exact else np.float32
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        labels, outputs = (np.empty((0, width), self._type) for width in self.widths)
        self._chunks = [Kept(labels, outputs, np.empty(0, np.float32), np.empty(0, np.uint64))]
        self._seen = self._kept = self.level = 0

    def update(
        self, labels: Array, predictions: Array, mask: Array | None, weights: Array, groups: Array | None
    ) -> None:
        """Add n samples, see `Metrics.update`; samples of which no label is known are left out."""
        keys = groups if self.grouped else np.arange(self._seen, self._seen + len(labels))
        self._seen += len(labels)
        known = np.ones(labels.shape, np.bool_) if mask is None else np.asarray(mask, np.bool_)
        columns = (np.where(known, labels, self._type("nan")), predictions, weights, keys)
        rows = known.any(axis=1)
        self._add(Kept(*(np.asarray(column)[rows] for column in columns)))

    def merge(self, other: OwnMetrics) -> None:
        """Add everything that `other`, of the same metrics, has seen; `other` does not change."""
        self._narrow(max(self.level, other.level))
        self._add(other.samples())

    def samples(self) -> Kept:
        """Return the kept samples."""
        if len(self._chunks) > 1:
            columns = (np.concatenate(parts) for parts in zip(*self._chunks, strict=True))
            self._chunks = [Kept(*(c.astype(e.dtype) for c, e in zip(columns, self._chunks[0], strict=True)))]
        return self._chunks[0]

    def compute(self) -> dict[str, float]:
        """Return the metrics by name, and `own_share`.

        Raises:
            TrainingError: a function returns something other than a number.
        """
        kept = self.samples()
        values = {
            "labels": kept.labels[:, 0] if self.widths[0] == 1 else kept.labels,
            "predictions": kept.predictions[:, 0] if self.widths[1] == 1 else kept.predictions,
            "weights": kept.weights,
            "groups": kept.keys,
        }
        found = {
            name: _number(function, _called(function, {key: values[key] for key in self.arguments[name]}))
            for name, function in self.functions.items()
        }
        return found | {"own_share": 0.5**self.level}

    def state(self) -> dict[str, Array]:
        """Return everything as arrays."""
        return {"level": np.array(self.level), **self.samples()._asdict()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take over what `state` returned."""
        self.level = int(state["level"])
        self._chunks = [Kept(*(np.array(state[name]) for name in Kept._fields))]
        self._kept = len(self._chunks[0].keys)

    def _add(self, samples: Kept) -> None:
        chosen = _of_level(samples, self.level)
        self._chunks.append(chosen)
        self._kept += len(chosen.keys)
        while self._kept > self.limit and self.level < 64:
            self._narrow(self.level + 1)

    def _narrow(self, level: int) -> None:
        self.level, self._chunks = level, [_of_level(self.samples(), level)]
        self._kept = len(self._chunks[0].keys)


def higher_is_better(function: Metric) -> bool:
    """Return the attribute of this name of a metric, by default True."""
    return getattr(function, "higher_is_better", None) in (None, True)


def metric_name(function: Metric) -> str:
    """Return the name of a metric.

    Raises:
        ConfigError: it has no name that is free.
    """
    name = getattr(function, "__name__", "") or (type(function).__name__ if _is_object(function) else "")
    if not name.isidentifier() or name in RESERVED:
        raise ConfigError(
            f"{name or repr(function)} cannot be a metric",
            fix="metrics takes functions (labels, predictions) -> number, with names of their own",
        )
    return name


def _is_object(metric: object) -> bool:
    """Tell whether a metric is an object of torchmetrics, or its class."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def _made(metric: Metric) -> Metric:
    if not isinstance(metric, type):
        return metric
    try:
        found: Metric = metric()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"metrics: {metric.__name__} cannot be made without arguments: {error}",
            fix=f"make one in a file, such as my_metric = {metric.__name__}(...), and name that",
        ) from error
    return found


def _called(metric: Metric, given: Mapping[str, Array]) -> Any:
    if not _is_object(metric):
        return metric(**given)
    import torch  # takes seconds, and `satrap init` needs none of it

    fresh: Any = copy.deepcopy(metric)  # its own state stays as it is
    fresh.reset()
    labels = given["labels"]
    whole = np.array_equal(labels, np.floor(labels))
    fresh.update(
        torch.from_numpy(given["predictions"].copy()),
        torch.from_numpy(labels.astype(np.int64 if whole else given["predictions"].dtype)),
    )
    return fresh.compute()


def _arguments(name: str, function: Metric, grouped: bool) -> list[str]:
    """Return which of `ARGUMENTS` a function gets."""
    if _is_object(function):
        return ["labels", "predictions"]
    found = list[str]()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ARGUMENTS and (parameter.name != "groups" or grouped):
            found.append(parameter.name)
        elif parameter.default is parameter.empty and parameter.name == "groups":
            raise ConfigError(
                f"metrics: {name} names groups, and there are none",
                fix="name the column of the groups: group",
            )
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise ConfigError(
                f"metrics: {name} has an argument {parameter.name!r} that no sample has",
                fix=f"name some of {', '.join(ARGUMENTS)}, and give other arguments a default",
            )
    return found


def _number(function: Metric, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # the last: a tensor of several numbers
        kind = type(value).__name__
        raise TrainingError(
            f"the metric {metric_name(function)} returned a value of type {kind}, not a number",
            where=place_of(function),
            fix="return one number, for example losses.mean()",
        ) from error


def _of_level(samples: Kept, level: int) -> Kept:
    """Return the samples whose key's hash is below 2^(64 - level)."""
    if level == 0:
        return samples
    keep = mix(samples.keys.astype(np.uint64)) >> np.uint64(64 - level) == 0
    return Kept(*(column[keep] for column in samples))
