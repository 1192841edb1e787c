"""Training of a recipe into a run folder, in this process or in others."""

import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from satrap.config import Recipe
from satrap.launch.cluster import driver, torchrun_worker
from satrap.launch.cluster.torchrun_worker import launched_by_torchrun
from satrap.launch.fit import fit
from satrap.launch.folder.open_run import opened, prepared
from satrap.launch.folder.outcome import InterruptedRunError, RunOutcome
from satrap.launch.folder.prometheus_targets import Targets
from satrap.launch.folder.resume import signal_handlers, stop_at_signals
from satrap.launch.folder.run_folder import RunFolder
from satrap.runtime import numba_cache
from satrap.train import Observer, WorkerContext


@signal_handlers({signal.SIGTERM: signal.default_int_handler})  # for cleanup of unfinished work
def train(
    recipe: Recipe | None,
    output: str | None = None,
    *,
    resume: bool = False,
    name: str = "",
    trial: bool = False,
    observers: Sequence[Observer] = (),
    notice: Callable[[str], None] = lambda _: None,
) -> RunOutcome:
    """Train a recipe and write all results to a run folder.

    Args:
        recipe: the recipe. Unless `cluster.exchange` is local, workers and shards are separate processes.
            None, when resuming: the recipe in the run folder.
        output: the run folder; default the first unused `runs/<name>-<n>`, or the last one when resuming.
        resume: continue from the run's newest snapshot, as if the run had never ended.
        name: name of the run, default the recipe's.
        trial: measure the recipe on its validation rows only; test rows are not read, and no model is saved.
        observers: notified of steps and evaluations; with other processes, only of some steps.
        notice: called with a line of text for the user.

    Raises:
        ConfigError, DataError: wrong input, or nothing to resume.
        CheckpointError: the snapshot to resume from is damaged.
        TrainingError: the run had to stop.
        ExchangeError: a shard or worker was lost.
        InterruptedRunError: Ctrl-C, or SIGTERM before the first step.

    After any error, a new run without metrics and saved files leaves no folder behind.

    Processes started by `torchrun` are the workers of one run, and all call this function, see `by_torchrun`.
    """
    if (launched := launched_by_torchrun(recipe)) is not None:
        return torchrun_worker.train(
            launched,
            recipe,
            output,
            resume=resume,
            name=name,
            trial=trial,
            observers=observers,
            notice=notice,
        )
    folder, recipe = opened(recipe, output, resume=resume, name=name, notice=notice)
    numba_cache.announce(lambda: notice(numba_cache.COMPILING))
    try:
        return _trained(recipe, folder, resume, trial, observers, notice)
    except (Exception, KeyboardInterrupt) as error:
        if not resume:
            folder.discard()
        if isinstance(error, KeyboardInterrupt):
            state = "the snapshot is unchanged" if resume else "nothing was saved"
            raise InterruptedRunError(f"interrupted before the first step; {state}") from error
        raise


def _trained(
    recipe: Recipe,
    folder: RunFolder,
    resume: bool,
    trial: bool,
    observers: Sequence[Observer],
    notice: Callable[[str], None],
) -> RunOutcome:
    """Train in this process or in others; for the arguments see `train`."""
    if recipe.sections.cluster.exchange != "local":
        return driver.run(recipe, folder, resume, trial=trial, observers=observers, notice=notice)
    schema, _ = prepared(recipe, folder, resume, notice)
    with stop_at_signals() as watch, closing(Targets(folder)) as targets:
        return fit(
            recipe,
            schema,
            folder,
            context=WorkerContext(report=partial(targets.heard, "worker 0"), trial=trial),
            observers=observers,
            notice=notice,
            started=watch,
            resume=resume,
        )
