"""Makes the arguments of a trainer from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from satrap import losses, models
from satrap.checkpoint import Checkpoint
from satrap.checkpoint.dense import same_shapes
from satrap.checkpoint.manifest import reading_settings
from satrap.errors import ConfigError
from satrap.optim import from_dict, schedule_from_dict
from satrap.runtime import user_code
from satrap.schema import Schema
from satrap.settings.ranking import Ranking
from satrap.settings.training import TrainingOptions
from satrap.store import Admission, StoreConfig, TableSettings
from satrap.train.state.dense_optimizer import rebuilt

PLAIN: dict[str, type | tuple[type, ...]] = {
    "mode": str,
    "staleness": int,
    "staleness_warmup": int,
    "seed": int,
    "initial_scale": (int, float),
    "embedding_dtype": str,
    "precision": str,
    "lr_scale": (int, float),
    "loss_scale": (int, float),
    "loss_scale_steps": int,
}
"""Types of plain settings."""


MakeModel = Callable[[Schema], nn.Module]
"""Makes a network for a schema."""


def trainer_arguments(
    checkpoint: Checkpoint, model: nn.Module | MakeModel | None, url: str
) -> dict[str, Any]:
    """Return the constructor arguments that a checkpoint describes.

    The user's own code is searched in `url`, if that is a run folder.

    Raises:
        CheckpointError: the settings cannot be used.
        ConfigError: the model is not given and not one of `satrap.models`, or is not the saved one.
    """
    settings = checkpoint.settings
    with reading_settings(url):
        schema = Schema.from_dict(settings["schema"])
        if model is None:
            model = _saved_model(settings["model"], schema, url)
        elif not isinstance(model, nn.Module):
            model = model(schema)
    difference = same_shapes(checkpoint.model, model)
    if difference:
        raise ConfigError(
            "the model differs from the saved one",
            where=f"{url}: {difference}",
            fix="build the model with the arguments it was trained with",
        )
    with reading_settings(url):
        for name, kinds in PLAIN.items():
            if not isinstance(settings[name], kinds) or isinstance(settings[name], bool):
                raise TypeError(f"{name} is {settings[name]!r}")
        loss = _saved_loss(settings.get("loss"), url)
        metrics = (_saved_code(reference, url) for reference in settings.get("metrics") or ())
        return {
            **({} if loss is None else {"loss": loss}),
            "model": model,
            "schema": schema,
            "embedding_optimizer": from_dict(settings["embedding_optimizer"]),
            "dense_optimizer": rebuilt(settings.get("dense_optimizer")),
            "mode": settings["mode"],
            "staleness": settings["staleness"],
            "store": StoreConfig(
                seed=settings["seed"],
                admission=Admission(**settings["admission"]),
                initial_scale=settings["initial_scale"],
                dtype=settings["embedding_dtype"],
                tables={
                    name: TableSettings.of(values) for name, values in settings.get("tables", {}).items()
                },
            ),
            "training": TrainingOptions(
                lr_schedule=schedule_from_dict(settings["lr_schedule"]),
                precision=settings["precision"],
                staleness_warmup=settings["staleness_warmup"],
                metrics=tuple(metric for metric in metrics if metric is not None),
                ranking=Ranking(**ranking) if (ranking := settings.get("ranking")) else None,
            ),
        }


def _is_run(url: str) -> bool:
    return (Path(url) / "recipe.yaml").is_file()


def _located(reference: str, url: str) -> str:
    """Return a reference to the user's own code, with its path in the run folder if it is a file there."""
    return f"{url}/{reference}" if user_code.is_file(user_code.parts(reference)[0]) else reference


def _saved_code(reference: str | None, url: str) -> Any:
    return user_code.find(_located(reference, url)) if reference and _is_run(url) else None


def _saved_loss(saved: str | dict[str, Any] | None, url: str) -> Any:
    return losses.from_dict(saved) if isinstance(saved, dict) else _saved_code(saved, url)


def _saved_model(recipe: dict[str, Any] | None, schema: Schema, url: str) -> nn.Module:
    if recipe is not None and "class" in recipe and _is_run(url):
        return models.create_own(_located(recipe["class"], url), schema, **recipe["arguments"])
    if recipe is None or "class" in recipe:
        raise ConfigError(
            "the saved model is not one of satrap.models",
            where=url,
            fix="pass the model: load(url, model=...); or give the run folder, if the model's code is there",
        )
    return models.create(recipe["name"], schema, **recipe["arguments"])
