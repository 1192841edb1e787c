"""Training and evaluation in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from satrap import data, models
from satrap.config import Recipe, unknown_value
from satrap.errors import ConfigError, DataError, SatrapError
from satrap.launch.folder import RunFolder
from satrap.launch.inputs import changed_files, measured, open_part, open_sources
from satrap.report import Curves, History, curves_available
from satrap.report.words import quality
from satrap.schema import Schema
from satrap.store import Admission
from satrap.train import Observer, Result, Trainer

Parameters = list[torch.nn.Parameter]

DENSE_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run achieved.

    Args:
        folder: where it is kept.
        result: of the trainer.
        test: metrics of the test rows; empty without any.
    """

    folder: RunFolder
    result: Result
    test: Mapping[str, float] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` holds: test metrics (else validation) on top, then speed, then all parts."""
        result = self.result
        return {
            **quality(self.test or result.metrics),
            "samples_per_second": result.samples_per_second,
            "samples": result.samples,
            "seconds": result.seconds,
            "steps": result.steps,
            "refused": result.refused,
            "stopped": result.stopped,
            "staleness": result.staleness,
            "validation": result.metrics,
            "test": self.test,
        }


class InterruptedRunError(SatrapError):
    """Training was stopped by Ctrl-C; the message says what was kept."""


def train(
    recipe: Recipe,
    output: str | None = None,
    *,
    name: str = "",
    observers: Sequence[Observer] = (),
    notice: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run a recipe and keep everything in a run folder.

    Args:
        recipe: what to do.
        output: the run folder; default the first free `runs/<name>-<n>`.
        name: default the recipe's.
        observers: told about every step and evaluation.
        notice: called with a line of text about something the user should know.

    Raises:
        ConfigError, DataError: the user's input; if nothing was measured yet, no folder is left behind.
        TrainingError: the run had to stop.
        InterruptedRunError: Ctrl-C.
    """
    folder = RunFolder.claim(recipe, output, name=name)
    try:
        for file in changed_files(recipe):
            notice(f"note: {file} is not the file the figures in the recipe are for (its md5 differs)")
        return _train(recipe, folder, observers, notice)
    except (ConfigError, DataError):
        folder.discard()
        raise
    except KeyboardInterrupt as error:
        folder.discard()
        raise InterruptedRunError("interrupted before the first step; nothing was kept") from error


def _train(
    recipe: Recipe, folder: RunFolder, observers: Sequence[Observer], notice: Callable[[str], None]
) -> Outcome:
    schema = measured(recipe, recipe.schema())
    parts = {part: open_part(recipe, schema, part) for part in ("train", "validation", "test")}
    assert parts["train"] is not None
    trainer = make_trainer(recipe, schema)
    history = History(folder.history_file)
    with ExitStack() as stack:
        stack.callback(trainer.close)
        recorders: list[Observer] = [history]
        if curves_available():
            curves = Curves(folder.curves)
            stack.callback(curves.close)
            recorders.append(curves)
        else:
            notice("note: no TensorBoard curves; pip install 'satrap[tensorboard]' to have them")
        try:
            result = trainer.fit(
                parts["train"],
                validation=parts["validation"],
                epochs=recipe.sections.training.epochs,
                steps=recipe.sections.training.steps,
                observers=[*recorders, *observers],
            )
            trainer.save(str(folder.model))
            test = {} if parts["test"] is None else trainer.evaluate(parts["test"])
        except KeyboardInterrupt as error:
            raise _keep_interrupted(trainer, folder, history) from error
    if test:
        history.write("test", {"step": result.steps, **test})
    outcome = Outcome(folder, result, test)
    folder.write_metrics(outcome.metrics)
    return outcome


def make_trainer(recipe: Recipe, schema: Schema) -> Trainer:
    """Return the untrained trainer of a recipe.

    Args:
        recipe: model, optimizers and schedule.
        schema: labels and features, measured.

    Raises:
        ConfigError: the model or the device is impossible; the message names the recipe's line.
    """
    sections = recipe.sections
    training = sections.training
    torch.manual_seed(training.seed)
    name, arguments = sections.model.name, sections.model.model_extra or {}
    if name not in models.names():
        raise unknown_value(("model", "name"), name, models.names(), recipe.source)
    admission = sections.embedding.admission.model_dump()
    model = recipe.located(("model",), models.create, name, schema, **arguments)
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
        device=training.device,
        memory=sections.embedding.memory,
        initial_scale=sections.embedding.initial_scale,
        embedding_dtype=sections.embedding.dtype,
        admission=recipe.located(("embedding", "admission"), Admission, **admission),
        lr_schedule=recipe.lr_schedule(),
        clip_norm=training.clip_norm,
        plateau=training.plateau,
        patience=training.patience,
        threads=training.threads,
    )
    return trainer


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
    if history.steps == 0:
        return KeyboardInterrupt()
    trainer.save(str(folder.model))
    folder.write_metrics(
        {
            **quality(history.validation),
            "steps": history.steps,
            "stopped": "interrupted",
            "validation": history.validation,
            "test": {},
        }
    )
    return InterruptedRunError(
        f"interrupted after step {history.steps:,}\n"
        f"  kept: the model as of that step and the history, in {folder}\n"
        f"  next: satrap evaluate {folder}"
    )


def load_trainer(folder: RunFolder) -> Trainer:
    """Return the trained trainer of a run folder, for evaluation and prediction.

    Raises:
        CheckpointError: the saved model cannot be read.
    """
    return Trainer.load(str(folder.model), device=folder.recipe().sections.training.device)


def evaluate(folder: RunFolder, sources: Sequence[str] = ()) -> dict[str, float]:
    """Return the metrics of a trained model.

    Args:
        folder: of the run.
        sources: files with labels, relative to the current folder; default the recipe's test rows, else
            its validation rows.

    Raises:
        ConfigError: the recipe names neither.
        DataError: the data cannot be read.
        CheckpointError: the saved model cannot be read.
    """
    recipe = folder.recipe()
    trainer = load_trainer(folder)
    try:
        rows: data.Dataset | None
        if sources:
            rows = open_sources(recipe, trainer.schema, sources)
        else:
            rows = open_part(recipe, trainer.schema, "test") or open_part(
                recipe, trainer.schema, "validation"
            )
        if rows is None:
            raise ConfigError(
                "the recipe names no test or validation rows",
                where=str(folder.recipe_file),
                fix="give the rows: --input FILE",
            )
        return trainer.evaluate(rows)
    finally:
        trainer.close()
