"""The network of a recipe, its optimizer, and the user's functions."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from satrap import models
from satrap.config import Recipe, unknown_value
from satrap.config.recipe import checked
from satrap.dense import offloaded
from satrap.dense.memory.initial_weights import build
from satrap.errors import ConfigError
from satrap.models.presets import PRESETS
from satrap.runtime import user_code
from satrap.schema import Schema

Parameters = list[torch.nn.Parameter]

DENSE_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def make_model(
    recipe: Recipe,
    schema: Schema,
    *,
    in_parts: bool = False,
    notice: Callable[[str], None] = lambda _: None,
) -> torch.nn.Module:
    """Return the untrained network of a recipe: the same weights in every process.

    `in_parts` and `notice` are as in `satrap.dense.memory.initial_weights.build`.
    """
    seed = recipe.sections.training.seed
    return build(partial(construct_model, recipe, schema), seed, in_parts=in_parts, notice=notice)


def construct_model(recipe: Recipe, schema: Schema) -> torch.nn.Module:
    """Return the network of a recipe with any weights, or none on the meta device."""
    model = _own_or_shipped(recipe, schema)
    if layout := recipe.sections.dense.layout:
        setattr(model, "tensor_plan", layout)  # noqa: B010 - replaces the model's default
    return model


def _own_or_shipped(recipe: Recipe, schema: Schema) -> torch.nn.Module:
    recipe = without_leftovers(recipe)
    sections = recipe.sections
    name, arguments = sections.model.name, sections.model.model_extra or {}
    if reference := recipe.own_code().get(("model", "class")):
        return recipe.located(("model",), models.create_own, reference, schema, **arguments)
    assert name is not None
    if name not in models.names():
        raise unknown_value(("model", "name"), name, models.names(), recipe.source)
    return recipe.located(("model",), models.create, name, schema, **arguments)


def without_leftovers(recipe: Recipe, notice: Callable[[str], None] = lambda _: None) -> Recipe:
    """Return a recipe; after `--set model.name`, drop the file's model arguments that the new model lacks.

    `notice` is called with a line of text about them. Arguments from `--set` stay.
    """
    source, model = recipe.source, recipe.sections.model
    if (
        model.name is None
        or model.name not in models.names()
        or not source.place(("model", "name")).startswith("--set")
    ):
        return recipe
    allowed, presets = models.arguments(model.name), PRESETS.get(model.name, {})
    dropped = [
        key
        for key, value in (model.model_extra or {}).items()
        if key not in allowed
        and not (key == "preset" and value in presets)
        and not source.place(("model", key)).startswith("--set")
    ]
    if not dropped:
        return recipe
    notice(f"note: {model.name} has no argument {', '.join(dropped)}: removed from the recipe's model")
    values = {**source.values, "model": {k: v for k, v in source.values["model"].items() if k not in dropped}}
    return checked(replace(source, values=values))


def dense_optimizer(recipe: Recipe) -> Callable[[Parameters], torch.optim.Optimizer]:
    """Return a function that makes the recipe's `torch.optim` optimizer from a list of parameters."""
    keys = recipe.sections.dense.optimizer.model_dump()
    kind = DENSE_OPTIMIZERS[keys.pop("name")]
    arguments: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in keys.items()}
    return lambda parameters: kind(parameters, **arguments)


def placed_optimizer(recipe: Recipe) -> Callable[[Parameters], torch.optim.Optimizer]:
    """Return `dense_optimizer`, with its state at the place given by `dense.offload`."""
    make, offload = dense_optimizer(recipe), recipe.sections.dense.offload
    return make if offload is None else offloaded(make, offload.folder)


def own_functions(recipe: Recipe, key: str) -> dict[str, Any]:
    """Return the user functions in `training.<key>`, by key or by index in its list."""
    functions = {}
    for path, reference in recipe.own_code().items():
        if path[:2] == ("training", key):
            function = recipe.located(path, user_code.find, reference)
            if not callable(function):
                raise ConfigError(f"{reference} is not a function", where=recipe.source.where(path))
            functions[str(path[-1])] = function
    return functions
