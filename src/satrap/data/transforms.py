"""Numeric transforms: "log1p", "standardize" and "clip", on float64 columns where NaN means missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, did_you_mean
from satrap.schema import Numeric, Transform

Doubles = npt.NDArray[np.float64]
_NAMES = ("log1p", "standardize", "clip")


def steps_of(feature: Numeric) -> list[Transform]:
    """Return the transform of a feature as a list of steps, possibly empty."""
    steps = feature.transform
    if steps is None:
        return []
    return [steps] if isinstance(steps, str | Mapping) else list(steps)


def unmeasured(feature: Numeric) -> int | None:
    """Return the index of the first "standardize" without statistics, or None."""
    for i, step in enumerate(steps_of(feature)):
        name, arguments = _parts(step, "")
        if name == "standardize" and arguments is None:
            return i
    return None


def compile_steps(feature: Numeric, name: str, count: int | None = None) -> Callable[[Doubles], Doubles]:
    """Return one function float64[n] -> float64[n] that applies the first `count` steps (default: all).

    Raises `ConfigError` for an unknown step, impossible arguments, or "standardize" without statistics.
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
    if name == "log1p":
        return lambda values: np.log1p(np.maximum(values, 0.0))
    if name == "clip":
        return _clip(arguments, where)
    if name == "standardize":
        return _standardize(arguments, where)
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


def _standardize(arguments: Any, where: str) -> Callable[[Doubles], Doubles]:
    if arguments is None:
        raise ConfigError(
            f"{where}: standardize has no mean and std yet",
            why="training and prediction must use the same statistics",
            fix="call satrap.data.measure(schema, dataset) and use the schema it returns",
        )
    try:
        mean, std = float(arguments["mean"]), float(arguments["std"])
    except (TypeError, KeyError, ValueError) as error:
        raise ConfigError(f"{where}: standardize needs {{mean: m, std: s}}, got {arguments!r}") from error
    if not (np.isfinite(mean) and np.isfinite(std) and std >= 0):
        raise ConfigError(f"{where}: standardize needs a finite mean and std >= 0, got {arguments!r}")
    divisor = std or 1.0  # a constant column becomes zeros
    return lambda values: (values - mean) / divisor
