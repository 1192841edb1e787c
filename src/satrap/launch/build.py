"""Builds a recipe's trainer, and the settings of its parts."""

from collections.abc import Callable
from dataclasses import replace

import torch

from satrap.config import Recipe
from satrap.config.keys.derive import fill
from satrap.dense import Mesh, offload_weights
from satrap.embedding import tables_of
from satrap.exchange.servers import Wire
from satrap.launch.network import make_model, own_functions, placed_optimizer
from satrap.losses import PairLoss
from satrap.schema import Schema, Table
from satrap.settings.store import StoreConfig
from satrap.train import Trainer, TrainingOptions, WorkerContext

WORKER_SEEDS = 1_000_003
"""Distance between the random seeds of two workers."""


def make_trainer(
    recipe: Recipe,
    schema: Schema,
    context: WorkerContext = WorkerContext(),
    notice: Callable[[str], None] = lambda _: None,
    network: torch.nn.Module | None = None,
) -> Trainer:
    """Return the untrained trainer of a recipe and a measured schema.

    `notice` is called with a line of text if the network cannot be initialized in shards. `network` replaces
    the recipe's network. A ConfigError about the model or the device names the recipe's line.
    """
    sections = recipe.sections
    training, workers, loss = sections.training, context.workers, sections.training.loss
    offload = sections.dense.offload
    folder = offload.folder if offload is not None and offload.weights else None
    in_parts = folder is not None or not workers.mesh.whole
    model = network or make_model(recipe, schema, in_parts=in_parts, notice=notice)
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
        embedding_optimizer=recipe.sections.embedding.optimizer,
        dense_optimizer=placed_optimizer(recipe),
        mode=training.mode,
        staleness=training.staleness,
        lookahead=training.lookahead,
        device=training.device,
        store=store_of(recipe),
        training=training_options(recipe),
        **({"loss": loss} if isinstance(loss, PairLoss) else own_functions(recipe, "loss")),
        place=replace(context, threads=training.threads or context.threads),
    )
    return trainer


def training_options(recipe: Recipe) -> TrainingOptions:
    """Return the training options of a recipe."""
    training, dense = recipe.sections.training, recipe.sections.dense
    options: TrainingOptions = fill(
        TrainingOptions,
        training,
        dense,
        microbatches=1 if dense.mesh.pipeline > 1 else dense.microbatches or 1,
        metrics=tuple(own_functions(recipe, "metrics").values()),
    )
    return options.suited(recipe.sections.labels)


def store_of(recipe: Recipe) -> StoreConfig:
    """Return the store settings of a recipe."""
    tables = {
        name: table if table.rows is None else replace(table, rows=recipe.locate(str(table.rows)))
        for name, table in recipe.sections.tables.items()
    }
    return fill(StoreConfig, recipe.sections.embedding, seed=recipe.sections.training.seed, tables=tables)


def tables_for(recipe: Recipe, schema: Schema, model: torch.nn.Module) -> list[Table]:
    """Return the tables of a recipe's model."""
    dims = getattr(model, "embedding_dims", None)
    return tables_of(schema, recipe.sections.embedding.optimizer, dims, store_of(recipe))


def mesh_of(recipe: Recipe) -> Mesh:
    """Return the mesh of the dense network."""
    sections = recipe.sections
    dense = sections.dense
    microbatches = dense.microbatches if dense.mesh.pipeline > 1 else None
    sizes = {"data": sections.shares, "microbatches": microbatches}
    mesh: Mesh = recipe.located(("dense",), fill, Mesh, dense, dense.mesh, **sizes)
    return mesh


def pools(recipe: Recipe) -> bool:
    """Return whether workers with whole tables may pool rows for other workers."""
    training = recipe.sections.training
    if mesh_of(recipe).peers > 1:  # peers do not know which rows are pooled
        return False
    whole = training.clip_norm is None and not training.lookahead and not isinstance(training.loss, PairLoss)
    return training.mode == "sync" and whole


def wire_of(recipe: Recipe) -> Wire:
    """Return the number formats between processes."""
    if recipe.sections.training.mode == "async":  # dense weights are sent, and need float32
        return Wire("float32", "float32")
    return recipe.sections.cluster.wire
