"""The optimizer of a network: the default, its check, and its description in a checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from satrap.dense import MakeOptimizer
from satrap.dense.compute.fused import WAYS
from satrap.errors import ConfigError
from satrap.optim import DENSE_LR

ADAM = "dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3)"
"""An example of an argument, for errors."""


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the default optimizer of a network, as in a recipe."""
    return torch.optim.Adam(parameters, lr=DENSE_LR)


class DenseOptimizer:
    """Makes the optimizer of a network, checks its type, and describes it.

    Args:
        make: makes the optimizer from the list of parameters.

    Attributes:
        description: `described` of the optimizer; empty: none was made yet.

    Raises:
        ConfigError: `make` takes other arguments, or returns another type; raised by the call.
    """

    def __init__(self, make: MakeOptimizer) -> None:
        self._make, self.description = make, dict[str, Any]()

    def __call__(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of some parameters."""
        try:
            made: object = self._make(parameters)
        except TypeError as error:
            raise ConfigError(
                f"dense_optimizer cannot be called with a list of parameters: {error}", fix=f"pass {ADAM}"
            ) from error
        if not isinstance(made, torch.optim.Optimizer):
            raise ConfigError(
                f"dense_optimizer returned a value of type {type(made).__name__}, not an optimizer",
                why="the network would not be trained",
                fix="return one of torch.optim, for example torch.optim.Adam(parameters, lr=1e-3)",
            )
        self.description = described(made)
        return made


def described(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the class and the arguments of an optimizer as plain data, for `rebuilt`.

    `arguments` is None if the class is not one of `torch.optim`, if an argument is not a plain value, or if
    there are several parameter groups.
    """
    kind = type(getattr(optimizer, "inner", optimizer))
    known = getattr(torch.optim, kind.__name__, None) is kind and len(optimizer.param_groups) == 1
    names = inspect.signature(kind).parameters.keys() - set(WAYS) if known else set[str]()
    arguments = {name: value for name, value in optimizer.defaults.items() if name in names}
    values = [part for v in arguments.values() for part in (v if isinstance(v, tuple | list) else [v])]
    plain = known and all(isinstance(value, bool | int | float | str | None) for value in values)
    return {"name": kind.__name__, "arguments": arguments if plain else None}


def rebuilt(saved: Mapping[str, Any] | None) -> MakeOptimizer | None:
    """Return what makes the optimizer that `described` describes; None if that is unknown.

    Raises:
        ValueError, KeyError, TypeError, IndexError: the description is invalid.
    """
    if saved is None or saved["arguments"] is None:
        return None
    kind = getattr(torch.optim, str(saved["name"]), None)
    if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer):
        raise ValueError(f"the optimizer {saved['name']!r} is not one of torch.optim")
    arguments: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in saved["arguments"].items()
    }
    kind([nn.Parameter(torch.zeros(1))], **arguments)  # it checks its arguments
    return partial(kind, **arguments)
