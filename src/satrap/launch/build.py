"""Builds the objects of a recipe: model, trainer, optimizers, store settings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from satrap import models
from satrap.config import Recipe, unknown_value
from satrap.config.recipe import checked
from satrap.dense import Mesh, Workers, offload_weights, offloaded
from satrap.dense.memory.deferred_init import deferred
from satrap.embedding import tables_of
from satrap.errors import ConfigError
from satrap.exchange import Exchange
from satrap.exchange.servers import Wire
from satrap.models.presets import PRESETS
from satrap.runtime import user_code
from satrap.runtime.events import Report
from satrap.schema import Schema, Table
from satrap.store import Admission, Eviction, StoreConfig, TableSettings, Tier
from satrap.train import Trainer, TrainingOptions, WorkerContext
from satrap.train.predictor import BatchSource
from satrap.train.resharding.requests import RequestSource
from satrap.train.state.initial_rows import check_rows

OpenData = Callable[[str], BatchSource | None]
Parameters = list[torch.nn.Parameter]

WORKER_SEEDS = 1_000_003
"""Distance between the random seeds of two workers."""

DENSE_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True, slots=True)
class Site:
    """The environment of one worker of a run; by default a single process that holds all rows."""

    workers: Workers = field(default_factory=Workers)  # all workers of the run
    exchange: Callable[[Sequence[Table]], Exchange] | None = None  # makes the exchange; None: local
    device: str | None = None  # device of the network; None: the recipe's
    threads: int | None = None  # PyTorch's threads without training.threads; None: as in `Trainer`
    data: OpenData | None = None  # returns this worker's share of a part, None without rows
    report: Report = lambda _: None  # called with the events of this process
    desk: RequestSource | None = None  # source of resharding requests
    trial: bool = False  # measure validation metrics only: no test, no saved model


def make_trainer(
    recipe: Recipe,
    schema: Schema,
    site: Site = Site(),
    notice: Callable[[str], None] = lambda _: None,
    network: torch.nn.Module | None = None,
) -> Trainer:
    """Return the untrained trainer of a recipe and a measured schema.

    `notice` is called with a line of text if the network cannot be initialized in shards. `network` replaces
    the recipe's network. A ConfigError about the model or the device names the recipe's line.
    """
    sections = recipe.sections
    training = sections.training
    workers, make = site.workers, partial(make_model, recipe, schema)
    offload = sections.dense.offload
    folder = offload.folder if offload is not None and offload.weights else None
    in_parts = folder is not None or not workers.mesh.whole
    model = network or (deferred(make, notice) if in_parts else make())
    if offload is not None and offload.weights:
        offload_weights(model, folder)
    if number := workers.data.rank * workers.pipeline.size + workers.pipeline.rank:
        # Weights are equal in all workers, but dropout differs.
        torch.manual_seed(training.seed + number * WORKER_SEEDS)
    trainer: Trainer = recipe.located(
        ("training",),
        Trainer,
        model,
        schema,
        embedding_optimizer=recipe.embedding_optimizer(),
        dense_optimizer=placed_optimizer(recipe),
        mode=training.mode,
        staleness=training.staleness,
        lookahead=training.lookahead,
        device=site.device or training.device,
        store=store_of(recipe),
        training=training_options(recipe),
        **own_functions(recipe, "loss"),
        place=WorkerContext(site.exchange, site.workers, training.threads or site.threads, site.desk),
    )
    return trainer


def training_options(recipe: Recipe) -> TrainingOptions:
    """Return the training options of a recipe."""
    training, dense = recipe.sections.training, recipe.sections.dense
    return TrainingOptions(
        lr_schedule=recipe.lr_schedule(),
        clip_norm=training.clip_norm,
        plateau=training.plateau,
        patience=training.patience,
        staleness_warmup=training.staleness_warmup,
        precision=dense.precision,
        microbatches=1 if dense.mesh.pipeline > 1 else dense.microbatches or 1,
        checkpoint_activations=dense.checkpoint_activations,
        compile=dense.compile,
        monitor=training.monitor,
        metrics=tuple(own_functions(recipe, "metrics").values()),
    )


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


def store_of(recipe: Recipe) -> StoreConfig:
    """Return the store settings of a recipe; a ConfigError about admission names the recipe's line."""
    keys = recipe.sections.embedding
    return StoreConfig(
        seed=recipe.sections.training.seed,
        memory=keys.memory,
        admission=recipe.located(("embedding", "admission"), Admission, **keys.admission.model_dump()),
        eviction=None if keys.eviction is None else Eviction(**keys.eviction.model_dump()),
        tier=None if keys.tier is None else Tier(**keys.tier.model_dump()),
        initial_scale=keys.initial_scale,
        dtype=keys.dtype,
        tables={name: _table_settings(recipe, name) for name in recipe.sections.tables},
    )


def _table_settings(recipe: Recipe, name: str) -> TableSettings:
    table = recipe.sections.tables[name]
    overrides = table.model_dump(include=table.model_fields_set & {"admission", "eviction"})
    if overrides.get("admission") is not None:
        path = ("tables", name, "admission")
        overrides["admission"] = recipe.located(path, Admission, **overrides["admission"])
    if overrides.get("eviction") is not None:
        overrides["eviction"] = Eviction(**overrides["eviction"])
    return TableSettings(
        recipe.table_optimizers().get(name),
        table.initial_scale,
        table.dtype,
        None if table.rows is None else recipe.locate(table.rows),
        table.frozen,
        table.memory,
        **overrides,
    )


def tables_for(recipe: Recipe, schema: Schema, model: torch.nn.Module) -> list[Table]:
    """Return the tables of a recipe's model."""
    dims = getattr(model, "embedding_dims", None)
    return tables_of(schema, recipe.embedding_optimizer(), dims, store_of(recipe))


def pretrained_rows(recipe: Recipe) -> dict[str, int]:
    """Return table -> number of rows in its file of initial rows; for errors see `check_rows`."""
    if all(table.rows is None for table in recipe.sections.tables.values()):
        return {}
    schema = recipe.schema()
    return check_rows(schema, tables_for(recipe, schema, make_model(recipe, schema)), store_of(recipe))


def make_model(recipe: Recipe, schema: Schema) -> torch.nn.Module:
    """Return the untrained network of a recipe: the same weights in every process."""
    model = _own_or_shipped(recipe, schema)
    if layout := recipe.sections.dense.layout:
        setattr(model, "tensor_plan", layout)  # noqa: B010 - replaces the model's default
    return model


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


def _own_or_shipped(recipe: Recipe, schema: Schema) -> torch.nn.Module:
    recipe = without_leftovers(recipe)
    sections = recipe.sections
    torch.manual_seed(sections.training.seed)
    name, arguments = sections.model.name, sections.model.model_extra or {}
    if reference := recipe.own_code().get(("model", "class")):
        return recipe.located(("model",), models.create_own, reference, schema, **arguments)
    assert name is not None
    if name not in models.names():
        raise unknown_value(("model", "name"), name, models.names(), recipe.source)
    return recipe.located(("model",), models.create, name, schema, **arguments)


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


def mesh_of(recipe: Recipe) -> Mesh:
    """Return the mesh of the dense network."""
    sections = recipe.sections
    dense = sections.dense
    return recipe.located(
        ("dense",),
        Mesh,
        sections.shares,
        dense.mesh.tensor,
        dense.sharded,
        dense.shard_size,
        pipeline=dense.mesh.pipeline,
        microbatches=dense.microbatches if dense.mesh.pipeline > 1 else None,
        schedule=dense.schedule,
        stages=tuple(dense.stages),
        stages_per_rank=dense.stages_per_rank,
    )


def pools(recipe: Recipe) -> bool:
    """Return whether workers with whole tables may pool rows for other workers."""
    training = recipe.sections.training
    if mesh_of(recipe).peers > 1:  # peers do not know which rows are pooled
        return False
    return training.mode == "sync" and training.clip_norm is None and not training.lookahead


def wire_of(recipe: Recipe) -> Wire:
    """Return the number formats between processes."""
    if recipe.sections.training.mode == "async":  # dense weights are sent, and need float32
        return Wire("float32", "float32")
    wire = recipe.sections.cluster.wire
    return Wire(wire.forward, wire.backward, wire.dense, wire.dense_rank)
