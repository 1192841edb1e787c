"""Numeric transforms such as "log1p" and "standardize", on float64 columns where NaN means missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, did_you_mean
from satrap.schema import Numeric, Transform

Doubles = npt.NDArray[np.float64]
_NAMES = ("log1p", "log10", "sqrt", "standardize", "minmax", "clip")
_PLAIN: dict[str, Callable[[Doubles], Doubles]] = {
    "log1p": lambda values: np.log1p(np.maximum(values, 0.0)),
    "log10": lambda values: np.log10(1 + np.maximum(values, 0.0)),
    "sqrt": lambda values: np.sqrt(np.maximum(values, 0.0)),
}
_MEASURED = {"standardize": ("mean", "std"), "minmax": ("min", "max")}
"""Steps with statistics of the training rows, and their names."""


def steps_of(feature: Numeric) -> list[Transform]:
    """Return the transform of a feature as a list of steps, possibly empty."""
    steps = feature.transform
    if steps is None:
        return []
    return [steps] if isinstance(steps, str | Mapping) else list(steps)


def unmeasured(feature: Numeric) -> int | None:
    """Return the index of the first "standardize" or "minmax" without statistics, or None."""
    for i, step in enumerate(steps_of(feature)):
        name, arguments = _parts(step, "")
        if name in _MEASURED and arguments is None:
            return i
    return None


def compile_steps(feature: Numeric, name: str, count: int | None = None) -> Callable[[Doubles], Doubles]:
    """Return one function float64[n] -> float64[n] that applies the first `count` steps (default: all).

    Raises `ConfigError` for an unknown step, impossible arguments, or a step without its statistics.
    """
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
    if name in _PLAIN:
        raise ConfigError(f"{where}: {name} takes no arguments, got {arguments!r}")
    raise ConfigError(
        f"{where}: transform {name!r} is unknown",
        fix=f"{did_you_mean(name, _NAMES)}use {', '.join(_NAMES)}",
    )


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


def _statistics(name: str, arguments: Any, where: str) -> tuple[float, float]:
    """Return the two statistics of a measured step."""
    keys = _MEASURED[name]
    if arguments is None:
        raise ConfigError(
            f"{where}: {name} has no {' and '.join(keys)} yet",
            why="training and prediction must use the same statistics",
            fix="call satrap.data.measure(schema, dataset) and use the schema it returns",
        )
    try:
        first, second = (float(arguments[key]) for key in keys)
    except (TypeError, KeyError, ValueError) as error:
        needs = ", ".join(f"{key}: {key[0]}" for key in keys)
        raise ConfigError(f"{where}: {name} needs {{{needs}}}, got {arguments!r}") from error
    if not (np.isfinite(first) and np.isfinite(second)):
        raise ConfigError(f"{where}: {name} needs a finite {' and '.join(keys)}, got {arguments!r}")
    return first, second


def measured_step(feature: Numeric, index: int, statistics: Mapping[str, float]) -> Numeric:
    """Return a feature with the statistics of its step number `index` filled in, by their names."""
    steps = steps_of(feature)
    name, _ = _parts(steps[index], "")
    steps[index] = {name: {key: statistics[key] for key in _MEASURED[name]}}
    return replace(feature, transform=steps)
