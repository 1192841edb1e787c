"""Training and evaluation in this process, alone or as one of several workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from satrap import models
from satrap.checkpoint.places import newest
from satrap.config import Recipe, unknown_value
from satrap.dense import Workers
from satrap.errors import ConfigError, StoreError
from satrap.exchange import Exchange
from satrap.launch.endpoints import worker_endpoint
from satrap.launch.folder import RunFolder
from satrap.launch.inputs import PARTS, open_part
from satrap.launch.keeping import save_model
from satrap.launch.outcome import InterruptedRunError, Outcome
from satrap.launch.resume import rewind
from satrap.report import Curves, History, curves_available
from satrap.report.words import quality
from satrap.schema import Schema, Table
from satrap.store import Admission, Eviction, Tier
from satrap.train import Checkpointing, Observer, Trainer
from satrap.train.trainer import Data

OpenData = Callable[[str], Data | None]
Parameters = list[torch.nn.Parameter]

WORKER_SEEDS = 1_000_003
"""Between the seeds of two workers' random numbers."""

DENSE_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run happens, as one of its workers sees it.

    Args:
        workers: who trains together; default one process alone.
        exchange: given the tables, returns where their rows are; default a store in this process.
        device: where the network computes; default what the recipe says.
        threads: PyTorch's threads where the recipe says nothing; default as `Trainer`.
        data: given "train", "validation" or "test", returns this worker's share of the rows, None if there
            are none; default read here.
    """

    workers: Workers = field(default_factory=Workers)
    exchange: Callable[[Sequence[Table]], Exchange] | None = None
    device: str | None = None
    threads: int | None = None
    data: OpenData | None = None


HERE = Place()
"""One process that holds everything."""


def run(
    recipe: Recipe,
    schema: Schema,
    folder: RunFolder,
    *,
    place: Place = HERE,
    observers: Sequence[Observer] = (),
    notice: Callable[[str], None] = lambda _: None,
    started: Callable[[Trainer], None] = lambda _: None,
    checkpoint: Checkpointing | None = None,
    resume: bool = False,
) -> Outcome:
    """Train a recipe in this process, alone or as one of several workers; all of them call it.

    Args:
        recipe: what to do.
        schema: labels and features, measured.
        folder: of the run; rank 0 writes to it.
        place: where the rows and the other workers are.
        observers: told about every step and evaluation.
        notice: called with a line of text about something the user should know.
        started: called with the trainer before it trains.
        checkpoint: where snapshots go; a stop that was asked for is then no error.
        resume: go on from the newest one.

    Raises:
        ConfigError, DataError: the user's input.
        TrainingError, ExchangeError: the run had to stop.
        KeyboardInterrupt: stopped before the first step.
        InterruptedRunError: stopped later.
    """
    workers = place.workers
    parts = {part: _open(recipe, schema, part, place) for part in PARTS}
    assert parts["train"] is not None
    trainer = make_trainer(recipe, schema, place)
    history = History(folder.history_file, notice=notice)
    if resume and checkpoint is not None and workers.rank == 0:
        rewind(history, checkpoint)
    with ExitStack() as stack:
        stack.callback(trainer.close)
        stack.enter_context(worker_endpoint(recipe, trainer, notice))
        started(trainer)
        recorders = _recorders(stack, folder, history, notice) if workers.rank == 0 else ()
        try:
            result = trainer.fit(
                parts["train"],
                validation=parts["validation"],
                epochs=recipe.sections.training.epochs,
                steps=recipe.sections.training.steps,
                observers=[*recorders, *observers],
                checkpoint=checkpoint,
                resume=resume,
            )
            if result.stopped == "stopped":
                return _record(Outcome(folder, result), history, workers)
            save_model(trainer, folder)
            test = {} if parts["test"] is None else trainer.evaluate(parts["test"])
        except KeyboardInterrupt as error:
            raise _keep_interrupted(trainer, folder, history) from error
    return _record(Outcome(folder, result, test), history, workers)


def _open(recipe: Recipe, schema: Schema, part: str, place: Place) -> Data | None:
    if place.data is not None:
        return place.data(part)
    return open_part(recipe, schema, part, worker=place.workers.rank, workers=place.workers.world)


def _record(outcome: Outcome, history: History, workers: Workers) -> Outcome:
    if workers.rank == 0:
        if outcome.test:
            history.write("test", {"step": outcome.result.steps, **outcome.test})
        outcome.folder.write_metrics(outcome.metrics)
    return outcome


def _recorders(
    stack: ExitStack, folder: RunFolder, history: History, notice: Callable[[str], None]
) -> list[Observer]:
    recorders: list[Observer] = [history]
    if curves_available():
        curves = Curves(folder.curves, notice=notice)
        stack.callback(curves.close)
        recorders.append(curves)
    else:
        notice("note: no TensorBoard curves; pip install 'satrap[tensorboard]' to have them")
    return recorders


def make_trainer(recipe: Recipe, schema: Schema, place: Place = HERE) -> Trainer:
    """Return the untrained trainer of a recipe.

    Args:
        recipe: model, optimizers and schedule.
        schema: labels and features, measured.
        place: where the rows and the other workers are.

    Raises:
        ConfigError: the model or the device is impossible; the message names the recipe's line.
    """
    sections = recipe.sections
    training = sections.training
    model = make_model(recipe, schema)
    if place.workers.rank > 0:  # equal weights, but not equal dropout
        torch.manual_seed(training.seed + place.workers.rank * WORKER_SEEDS)
    trainer: Trainer = recipe.located(
        ("training",),
        Trainer,
        model,
        schema,
        embedding_optimizer=recipe.embedding_optimizer(),
        dense_optimizer=dense_optimizer(recipe),
        mode=training.mode,
        staleness=training.staleness,
        seed=training.seed,
        device=place.device or training.device,
        memory=sections.embedding.memory,
        initial_scale=sections.embedding.initial_scale,
        embedding_dtype=sections.embedding.dtype,
        admission=admission_of(recipe),
        eviction=eviction_of(recipe),
        tier=tier_of(recipe),
        lr_schedule=recipe.lr_schedule(),
        clip_norm=training.clip_norm,
        plateau=training.plateau,
        patience=training.patience,
        threads=training.threads or place.threads,
        exchange=place.exchange,
        workers=place.workers,
    )
    return trainer


def rows_of(recipe: Recipe) -> dict[str, Any]:
    """Return what a recipe says about rows in shard servers, as arguments of `ServersExchange`."""
    return {
        "seed": recipe.sections.training.seed,
        "memory": recipe.sections.embedding.memory,
        "admission": admission_of(recipe),
        "eviction": eviction_of(recipe),
        "tier": tier_of(recipe),
    }


def admission_of(recipe: Recipe) -> Admission:
    """Return which new ids get a row.

    Raises:
        ConfigError: impossible; the message names the recipe's line.
    """
    keys = recipe.sections.embedding.admission.model_dump()
    return recipe.located(("embedding", "admission"), Admission, **keys)


def eviction_of(recipe: Recipe) -> Eviction | None:
    """Return which rows go when memory is full."""
    keys = recipe.sections.embedding.eviction
    return None if keys is None else Eviction(**keys.model_dump())


def tier_of(recipe: Recipe) -> Tier | None:
    """Return where evicted rows are kept."""
    keys = recipe.sections.embedding.tier
    return None if keys is None else Tier(**keys.model_dump())


def make_model(recipe: Recipe, schema: Schema) -> torch.nn.Module:
    """Return the untrained network of a recipe: the same weights in every process.

    Raises:
        ConfigError: the model is unknown or impossible; the message names the recipe's line.
    """
    sections = recipe.sections
    torch.manual_seed(sections.training.seed)
    name, arguments = sections.model.name, sections.model.model_extra or {}
    if name not in models.names():
        raise unknown_value(("model", "name"), name, models.names(), recipe.source)
    return recipe.located(("model",), models.create, name, schema, **arguments)


def dense_optimizer(recipe: Recipe) -> Callable[[Parameters], torch.optim.Optimizer]:
    """Return what makes the `torch.optim` optimizer of a recipe from the list of parameters."""
    keys = recipe.sections.dense.optimizer.model_dump()
    kind = DENSE_OPTIMIZERS[keys.pop("name")]
    arguments: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in keys.items()}
    return lambda parameters: kind(parameters, **arguments)


def _keep_interrupted(
    trainer: Trainer, folder: RunFolder, history: History
) -> KeyboardInterrupt | InterruptedRunError:
    """Save the present state of an interrupted run, and return the error that says so."""
    if trainer.run.steps == 0:
        return KeyboardInterrupt()
    save_model(trainer, folder)
    if trainer.workers.rank == 0:
        folder.write_metrics(
            {
                **quality(history.validation),
                "steps": trainer.run.steps,
                "stopped": "interrupted",
                "validation": history.validation,
                "test": {},
            }
        )
    return InterruptedRunError(
        f"interrupted after step {trainer.run.steps:,}\n"
        f"  kept: the model as of that step and the history, in {folder}\n"
        f"  next: satrap evaluate {folder}"
    )


SCORING_KEYS = ("embedding.memory", "embedding.eviction", "embedding.tier", "training.device")
"""Keys of a recipe that may be overridden when its trained model is used: those that do not change it."""


def scoring_recipe(folder: RunFolder, overrides: Sequence[str]) -> Recipe:
    """Return the recipe of a run, with overrides of what does not change its model.

    Raises:
        ConfigError: another key, or a wrong value.
    """
    for override in overrides:
        key = override.partition("=")[0].strip()
        if not any(key == known or key.startswith(f"{known}.") for known in SCORING_KEYS):
            raise ConfigError(
                f"{key} of a trained model cannot be set", fix=f"set one of {', '.join(SCORING_KEYS)}"
            )
    return folder.recipe(overrides)


def load_trainer(folder: RunFolder, recipe: Recipe) -> Trainer:
    """Return the trained trainer of a run folder, for evaluation and prediction: of its newest snapshot where
    it was stopped before the end.

    Its rows are kept as the recipe says: within `embedding.memory`, and in `embedding.tier`.

    Raises:
        CheckpointError: the saved model cannot be read.
        ConfigError: its rows do not fit.
    """
    memory, tier = recipe.sections.embedding.memory, tier_of(recipe)
    ended = folder.model.exists() and folder.stopped != "stopped"
    place = str(folder.model) if ended else newest(folder.snapshots(recipe))
    try:
        trainer = Trainer.load(
            place,
            device=recipe.sections.training.device,
            memory=memory,
            eviction=None if tier is None else eviction_of(recipe),
            tier=tier,
        )
    except StoreError as error:
        raise _no_room(folder, error.what) from error
    lost = sum(table["evicted"] for table in trainer.statistics()["tables"].values())
    if lost:
        trainer.close()
        raise _no_room(folder, f"no room for {lost} rows")
    return trainer


def _no_room(folder: RunFolder, why: str) -> ConfigError:
    return ConfigError(
        "the rows of the trained model do not fit",
        where=str(folder.model),
        why=why,
        fix="give more: --set embedding.memory=SIZE, --set 'embedding.tier={path: FOLDER, size: SIZE}'",
    )
