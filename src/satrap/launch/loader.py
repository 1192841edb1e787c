"""The service of a loader: it reads the rows of a recipe in batches."""

from __future__ import annotations

from pathlib import Path

from satrap.config import Recipe, load
from satrap.data import Dataset
from satrap.data.loader import LoaderService
from satrap.errors import ConfigError
from satrap.launch.datasets import PARTS, open_part
from satrap.schema import Schema


def loader_service(recipe: Path) -> LoaderService:
    """Return the service that reads the rows of a recipe for workers.

    Args:
        recipe: file; only its section `data`, and what that section needs, is used.

    Raises:
        ConfigError: a recipe that cannot be used.
    """
    loaded = load(recipe)
    return LoaderService(lambda part, schema: _open(loaded, schema, part))


def _open(recipe: Recipe, schema: Schema, part: str) -> Dataset | None:
    if part not in PARTS:
        raise ConfigError(f"there is no part {part!r} of the data", fix=f"use one of {', '.join(PARTS)}")
    return open_part(recipe, schema, part)
