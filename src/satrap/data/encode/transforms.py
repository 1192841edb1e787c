"""Numeric transforms such as "log1p" and "standardize", on float64 columns where NaN means missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError
from satrap.schema import Numeric, Transform

Doubles = npt.NDArray[np.float64]
_PLAIN: dict[str, Callable[[Doubles], Doubles]] = {
    "log1p": lambda values: np.log1p(np.maximum(values, 0.0)),
    "log10": lambda values: np.log10(1 + np.maximum(values, 0.0)),
    "sqrt": lambda values: np.sqrt(np.maximum(values, 0.0)),
}
_MEASURED = {"standardize": ("mean", "std"), "minmax": ("min", "max")}
"""Steps that use statistics of the training rows -> names of the statistics."""


MOST_QUANTILES = 10_000


def steps_of(feature: Numeric) -> list[Transform]:
    """Return the transform of a feature as a list of steps, possibly empty."""
    steps = feature.transform
    if steps is None:
        return []
    return [steps] if isinstance(steps, str | Mapping) else list(steps)


def unmeasured(feature: Numeric) -> int | None:
    """Return the index of the first step without measured statistics, or None."""
    for i, step in enumerate(steps_of(feature)):
        name, arguments = _parts(step, "")
        if (name in _MEASURED and arguments is None) or (name == "quantiles" and _is_number(arguments)):
            return i
    return None


def is_measured(feature: Numeric) -> bool:
    """Return whether a feature has its counts, if it needs some, and the statistics of all steps."""
    return unmeasured(feature) is None and not lacks_counts(feature)


def lacks_counts(feature: Numeric) -> bool:
    """Return whether a feature needs counts of ids that are not measured yet."""
    return feature.of_ids and feature.counts is None


def measures(feature: Numeric, known: Numeric) -> bool:
    """Return whether `known` is a feature plus the statistics and counts that the feature lacks."""
    source = "column", "time", "count", "mean_label"
    if is_measured(feature) or not is_measured(known):
        return False
    if feature.of_ids and any(getattr(feature, key) != getattr(known, key) for key in source):
        return False
    steps, others = steps_of(feature), steps_of(known)
    return len(steps) == len(others) and all(
        step == other or _fills(step, other) for step, other in zip(steps, others, strict=True)
    )


def _fills(step: Transform, other: Transform) -> bool:
    (name, arguments), (same, other_arguments) = _parts(step, ""), _parts(other, "")
    if name == "quantiles":
        return name == same and _is_number(arguments) and len(other_arguments) == arguments
    return name == same and name in _MEASURED and arguments is None


def compile_steps(feature: Numeric, name: str, count: int | None = None) -> Callable[[Doubles], Doubles]:
    """Return one function float64[n] -> float64[n] that applies the first `count` steps (default all).

    Raises `ConfigError` for an unknown step, invalid arguments, or a step without statistics.
    """
    if lacks_counts(feature):
        raise _not_measured("count" if feature.count else "mean_label", "counts", f"feature {name!r}")
    functions = [_compile(step, f"feature {name!r}") for step in steps_of(feature)[:count]]

    def apply(values: Doubles) -> Doubles:
        for function in functions:
            values = function(values)
        return values

    return apply


def _parts(step: Transform, where: str) -> tuple[str, Any]:
    if isinstance(step, str):
        return step, None
    if isinstance(step, Mapping) and len(step) == 1:
        return next(iter(step.items()))
    raise ConfigError(f"{where}: a transform is a name or {{name: arguments}}, got {step!r}")


def _compile(step: Transform, where: str) -> Callable[[Doubles], Doubles]:
    name, arguments = _parts(step, where)
    if name in _PLAIN and arguments is None:
        return _PLAIN[name]
    if name == "clip":
        return _clip(arguments, where)
    if name == "standardize":
        mean, std = _statistics(name, arguments, where)
        if std < 0:
            raise ConfigError(f"{where}: standardize needs std >= 0, got {arguments!r}")
        return _scaling(mean, std)
    if name == "minmax":
        low, high = _statistics(name, arguments, where)
        if low > high:
            raise ConfigError(f"{where}: minmax needs min <= max, got {arguments!r}")
        return _scaling(low, high - low)
    if name == "quantiles":
        return _ranks(arguments, where)
    raise ConfigError(f"{where}: {name} takes no arguments, got {arguments!r}")


def _clip(arguments: Any, where: str) -> Callable[[Doubles], Doubles]:
    try:
        low, high = (float(v) for v in arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: clip needs [low, high], got {arguments!r}") from error
    if not low <= high:
        raise ConfigError(f"{where}: clip needs low <= high, got {arguments!r}")
    return lambda values: np.clip(values, low, high)


def _scaling(origin: float, unit: float) -> Callable[[Doubles], Doubles]:
    divisor = unit or 1.0  # a constant column becomes zeros
    return lambda values: (values - origin) / divisor


def _is_number(arguments: Any) -> bool:
    return type(arguments) is int and 2 <= arguments <= MOST_QUANTILES


def _ranks(arguments: Any, where: str) -> Callable[[Doubles], Doubles]:
    """Return a function that maps numbers to their ranks, 0 to 1, among quantiles of the training rows.

    For equal quantiles it uses their middle, like scikit-learn's `QuantileTransformer`.
    """
    if _is_number(arguments):
        raise _not_measured("quantiles", "values", where)
    try:
        values = np.asarray(arguments, np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all() or (np.diff(values) < 0).any():
        raise ConfigError(
            f"{where}: quantiles needs a count from 2 to {MOST_QUANTILES}, or ascending values, "
            f"got {arguments!r}"
        )
    ranks = np.linspace(0, 1, len(values))

    def apply(numbers: Doubles) -> Doubles:
        low, high = np.interp(numbers, values, ranks), -np.interp(-numbers, -values[::-1], -ranks[::-1])
        return np.where(np.isnan(numbers), np.nan, (low + high) / 2)

    return apply


def _not_measured(name: str, lacks: str, where: str) -> ConfigError:
    return ConfigError(
        f"{where}: {name} has no {lacks} yet",
        why="training and prediction must use the same statistics",
        fix="call satrap.data.measure(schema, dataset) and use the returned schema",
    )


def _statistics(name: str, arguments: Any, where: str) -> tuple[float, float]:
    """Return the two statistics of a measured step."""
    keys = _MEASURED[name]
    if arguments is None:
        raise _not_measured(name, " and ".join(keys), where)
    try:
        first, second = (float(arguments[key]) for key in keys)
    except (TypeError, KeyError, ValueError) as error:
        needs = ", ".join(f"{key}: {key[0]}" for key in keys)
        raise ConfigError(f"{where}: {name} needs {{{needs}}}, got {arguments!r}") from error
    if not (np.isfinite(first) and np.isfinite(second)):
        raise ConfigError(f"{where}: {name} needs a finite {' and '.join(keys)}, got {arguments!r}")
    return first, second


def needs_sample(feature: Numeric, index: int) -> bool:
    """Return whether step `index` of a feature is measured from a sample of its numbers."""
    return _parts(steps_of(feature)[index], "")[0] == "quantiles"


def measured_step(feature: Numeric, index: int, statistics: Mapping[str, Any]) -> Numeric:
    """Return a feature with the `statistics` of its step `index` filled in, keyed by name.

    For a step that `needs_sample`, the key is "sample", float64[n].
    """
    steps = steps_of(feature)
    name, arguments = _parts(steps[index], "")
    if name == "quantiles":
        steps[index] = {name: np.quantile(statistics["sample"], np.linspace(0, 1, arguments)).tolist()}
    else:
        steps[index] = {name: {key: statistics[key] for key in _MEASURED[name]}}
    return replace(feature, transform=steps)
