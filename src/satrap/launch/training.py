"""From a recipe to a run folder, wherever the run happens."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial

from satrap import machine_code
from satrap.config import Recipe
from satrap.launch import cluster, kept_code
from satrap.launch.build import Site, pretrained_rows
from satrap.launch.datasets import changed_files, measured
from satrap.launch.dry_run import COMPILING
from satrap.launch.fit import fit
from satrap.launch.folder import RunFolder
from satrap.launch.outcome import InterruptedRunError, Outcome
from satrap.launch.resume import (
    checkpointing,
    refuse_mixing,
    reopen,
    resuming,
    signal_handlers,
    stop_at_signals,
)
from satrap.launch.targets import Targets
from satrap.train import Observer


@signal_handlers({signal.SIGTERM: signal.default_int_handler})  # so that unfinished work is cleaned up
def train(
    recipe: Recipe | None,
    output: str | None = None,
    *,
    resume: bool = False,
    name: str = "",
    trial: bool = False,
    observers: Sequence[Observer] = (),
    notice: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run a recipe and keep everything in a run folder.

    Args:
        recipe: what to do. Unless `cluster.exchange` is local, workers and shards are other processes.
            None, when resuming: the recipe in the run folder.
        output: the run folder; default the first free `runs/<name>-<n>`, or the last one when resuming.
        resume: continue from the run's newest snapshot, as if it had never ended.
        name: default the recipe's.
        trial: measure the recipe on its validation rows only; test rows are not read, and no model is saved.
        observers: notified of steps and evaluations, but only of some steps of other processes.
        notice: called with a line of text about something the user should know.

    Raises:
        ConfigError, DataError: the user's input, or nothing to resume.
        CheckpointError: the snapshot to resume from is damaged.
        TrainingError: the run had to stop.
        ExchangeError: a shard or worker was lost.
        InterruptedRunError: Ctrl-C, or SIGTERM before the first step.

    Whatever is raised, a new run that measured and saved nothing leaves no folder behind.
    """
    if resume:
        folder, recipe = reopen(recipe, output, name)
    else:
        assert recipe is not None
        folder = RunFolder.claim(recipe, output, name=name)
        recipe = kept_code.adopt(recipe, folder.path)
    machine_code.announce(lambda: notice(COMPILING))
    try:
        return _trained(recipe, folder, resume, trial, observers, notice)
    except (Exception, KeyboardInterrupt) as error:
        if not resume:
            folder.discard()
        if isinstance(error, KeyboardInterrupt):
            raise InterruptedRunError("interrupted before the first step; nothing was kept") from error
        raise


def _trained(
    recipe: Recipe,
    folder: RunFolder,
    resume: bool,
    trial: bool,
    observers: Sequence[Observer],
    notice: Callable[[str], None],
) -> Outcome:
    """Train in this process, or in others; for the arguments see `train`."""
    for line in _changes(recipe, folder):
        notice(line)
    for line in [] if resume else _pretrained(recipe):
        notice(line)
    notice(_beginning(recipe))
    schema = measured(recipe, recipe.schema())
    plan = checkpointing(recipe, folder, notice)
    if resume:
        notice(resuming(plan))
    else:
        refuse_mixing(recipe, plan)
    if recipe.sections.cluster.exchange != "local":
        return cluster.run(
            recipe, schema, folder, plan, resume, trial=trial, observers=observers, notice=notice
        )
    with stop_at_signals() as watch, closing(Targets(folder)) as targets:
        return fit(
            recipe,
            schema,
            folder,
            site=Site(report=partial(targets.heard, "worker 0"), trial=trial),
            observers=observers,
            notice=notice,
            started=watch,
            resume=resume,
        )


def _beginning(recipe: Recipe) -> str:
    """Return a line that says what is started."""
    cluster, names = recipe.sections.cluster, []
    if cluster.exchange != "local":
        counts = {"shard": cluster.servers, "loader": cluster.loaders}
        counts |= {"embedding worker": cluster.embedding_workers, "worker": cluster.workers}
        names = [f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items() if count]
    there = f"; shards at {', '.join(cluster.addresses)}" if cluster.addresses else ""
    return f"starting {recipe.sections.training.mode}: {', '.join(names) or 'one process'}{there}"


def _pretrained(recipe: Recipe) -> Iterator[str]:
    """Check the rows that tables start with; yield a line for each table."""
    for name, rows in pretrained_rows(recipe).items():
        own = recipe.sections.tables[name]
        yield f"table {name}: {rows:,} rows from {own.rows}{', frozen' if own.frozen else ''}"


def _changes(recipe: Recipe, folder: RunFolder) -> Iterator[str]:
    """Yield a line for each file that is not the one the run or its recipe was made for."""
    yield from kept_code.changed(folder.path)
    for file in changed_files(recipe):
        yield f"note: {file} is not the file the figures in the recipe are for (its md5 differs)"
