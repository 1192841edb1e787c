"""Work of each training process: train a recipe, save the model, score the test rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from satrap.config import Recipe
from satrap.dense import Workers
from satrap.launch.build import make_trainer
from satrap.launch.datasets import PARTS, open_part, open_stream
from satrap.launch.folder.endpoints import worker_endpoint
from satrap.launch.folder.machine import MachineLog
from satrap.launch.folder.outcome import InterruptedRunError, RunOutcome
from satrap.launch.folder.resume import checkpointing, rewind
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.save_model import save_model
from satrap.launch.scoring import rank_items
from satrap.report import Curves, History, curves_available
from satrap.runtime.formatting import quality
from satrap.runtime.satrap_warnings import told
from satrap.runtime.user_code import blaming
from satrap.schema import Schema
from satrap.train import Observer, Trainer, WorkerContext


def fit(
    recipe: Recipe,
    schema: Schema,
    folder: RunFolder,
    *,
    context: WorkerContext = WorkerContext(),
    observers: Sequence[Observer] = (),
    notice: Callable[[str], None] = lambda _: None,
    started: Callable[[Trainer], None] = lambda _: None,
    resume: bool = False,
) -> RunOutcome:
    """Train a recipe in this process, alone or as one of several workers, which all call this function.

    `schema` is measured. Rank 0 writes to the folder. `started` is called with the trainer before training.
    Other arguments and errors are as for `satrap.launch.train`, but a run that is stopped before its first
    step raises KeyboardInterrupt.
    """
    workers, share = context.workers, context.workers.data
    open_share = context.data or partial(open_part, recipe, schema, worker=share.rank, workers=share.size)
    stream = open_stream(recipe, schema, worker=share.rank, workers=share.size)
    needed = [part for part in PARTS if not (context.trial and part == "test")]
    parts = {part: open_share(part) for part in needed if part != "train" or stream is None}
    rows, held = stream or parts["train"], parts.get("test")
    assert rows is not None
    trainer = make_trainer(recipe, schema, context, notice)
    history = History(folder.history_file, notice=notice)
    checkpoint = checkpointing(recipe, folder, notice)
    checkpoint = replace(checkpoint, publish=None) if context.trial else checkpoint
    if resume and workers.rank == 0:
        rewind(history, checkpoint)
    with ExitStack() as stack:
        stack.callback(trainer.close)
        stack.enter_context(told(notice))
        stack.enter_context(worker_endpoint(recipe, trainer, notice, context.report))
        started(trainer)
        recorders = _recorders(stack, folder, history, notice) if workers.rank == 0 else ()
        try:
            _warm_start(recipe, trainer, resume, notice)
            rank_items(recipe, trainer.predictor, lambda: rows, held)
            with blaming("your own code failed"):
                result = trainer.fit(
                    rows,
                    validation=parts["validation"],
                    epochs=recipe.sections.training.epochs,
                    steps=recipe.sections.training.steps,
                    observers=[*recorders, *observers],
                    checkpoint=checkpoint,
                    resume=resume,
                )
            if result.stopped == "stopped":
                return _record(RunOutcome(folder, result), history, workers)
            if not context.trial:
                save_model(trainer, folder)
            test = {} if held is None else trainer.evaluate(held)
            for part, metrics in (("validation", dict(*result.history[-1:])), ("test", test)):
                for warning in one_class(part, metrics) if workers.rank == 0 else ():
                    notice(warning)
        except KeyboardInterrupt as error:
            raise _keep_interrupted(trainer, folder, history) from error
    return _record(RunOutcome(folder, result, test), history, workers)


def _warm_start(recipe: Recipe, trainer: Trainer, resume: bool, notice: Callable[[str], None]) -> None:
    """Give a new run the weights and rows of the run that its recipe names, and print which."""
    start = recipe.sections.training.warm_start
    if start is not None and not resume:
        report = trainer.warm_start(recipe.locate(start.url), state=start.state)
        for line in report.lines() if trainer.workers.rank == 0 else ():
            notice(line)


def one_class(part: str, metrics: Mapping[str, float]) -> Iterator[str]:
    """Yield a warning for each label that is 0, or 1, in all samples of a part of the data."""
    for key in [key for key in metrics if key.rpartition("/")[2] == "positives"]:
        label, samples = key.rpartition("/")[0], metrics[f"{key.removesuffix('positives')}samples"]
        if metrics[key] in (0, samples):
            yield (
                f"warning: {label or 'the label'} is {int(metrics[key] > 0)} in all {samples:,} {part} rows\n"
                "  why it matters: AUC, learning-rate drops, early stopping and the best weights need both "
                "values\n"
                "  what to do: check the label's positive or threshold, and check data.split if rows are "
                "sorted"
            )


def _record(outcome: RunOutcome, history: History, workers: Workers) -> RunOutcome:
    if workers.rank == 0:
        if outcome.test:
            history.write("test", {"step": outcome.result.steps, **outcome.test})
        outcome.folder.write_metrics(outcome.metrics)
    return outcome


def _recorders(
    stack: ExitStack, folder: RunFolder, history: History, notice: Callable[[str], None]
) -> list[Observer]:
    recorders: list[Observer] = [history, MachineLog(folder.sessions_file, notice=notice)]
    if curves_available():
        curves = Curves(folder.curves, notice=notice)
        stack.callback(curves.close)
        recorders.append(curves)
    else:
        notice("note: no TensorBoard curves; to get them: pip install 'satrap[tensorboard]'")
    return recorders


def _keep_interrupted(
    trainer: Trainer, folder: RunFolder, history: History
) -> KeyboardInterrupt | InterruptedRunError:
    """Save the current state of an interrupted run, and return the error that reports it."""
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
