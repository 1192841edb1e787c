"""Facts about a model: from its class, its docstring and its presets."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from satrap import models
from satrap.models.layers.common import Ranker
from satrap.models.presets import PRESETS


@dataclass(frozen=True, slots=True)
class ModelArgument:
    """An argument of a model: a key of `model` in a recipe.

    Args:
        name: name of the argument.
        default: its default.
        meaning: its description.
    """

    name: str
    default: Any
    meaning: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that recipes can name.

    Args:
        name: `model.name` in a recipe.
        summary: one sentence.
        needs: the parts of a recipe that it needs, keys of `satrap.models.layers.common.NEEDS`.
        one_width: whether it brings the vectors of all features to one width; other models use them as they
            are.
        source: its publication.
        arguments: its arguments, with their defaults.
        presets: name -> arguments that differ from the defaults.
    """

    name: str
    summary: str
    needs: tuple[str, ...]
    one_width: bool
    source: str
    arguments: tuple[ModelArgument, ...]
    presets: Mapping[str, Mapping[str, Any]]


def catalog() -> list[ModelInfo]:
    """Return all models, simplest first."""
    return [about(name) for name in models.names()]


def about(name: str) -> ModelInfo:
    """Return the facts about a model.

    Raises:
        ConfigError: unknown name; the message suggests the nearest one.
    """
    defaults = models.arguments(name)
    kind = models.model_class(name)
    assert issubclass(kind, Ranker)
    text = inspect.cleandoc(kind.__doc__ or "")
    meanings = _meanings(text)
    source = re.search(r"^Reference: (.+?)(?=\n\n|\Z)", text, flags=re.DOTALL | re.MULTILINE)
    return ModelInfo(
        name=name,
        summary=text.partition("\n\n")[0].replace("\n", " "),
        needs=kind.needs,
        one_width=kind.one_width,
        source=" ".join(source[1].split()) if source else "",
        arguments=tuple(
            ModelArgument(key, list(value) if isinstance(value, tuple) else value, meanings[key])
            for key, value in defaults.items()
        ),
        presets=PRESETS.get(name, {}),
    )


def _meanings(text: str) -> dict[str, str]:
    """Return argument -> description from the section Args of a docstring."""
    section = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
    meanings, names = dict[str, str](), list[str]()
    for line in section.splitlines():
        if match := re.match(r" {4}(\w+(?:, \w+)*): (.*)", line):
            names = match[1].split(", ")
            meanings |= dict.fromkeys(names, match[2])
        else:
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
    return meanings
