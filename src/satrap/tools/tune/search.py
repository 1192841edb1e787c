"""A search: a sequence of trials in a folder, which can be interrupted and resumed."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from satrap.config import Recipe, load, to_yaml
from satrap.config.show import leaves
from satrap.config.source import KeyPath, dotted
from satrap.errors import ConfigError
from satrap.launch.build import training_options
from satrap.launch.datasets import open_part
from satrap.launch.folder.resume import signal_handlers
from satrap.launch.folder.run_folder import OWN, RUNS, locked, write_whole
from satrap.metrics import criterion
from satrap.tools.tune.best import write_best
from satrap.tools.tune.space import Dimension, chosen, space_of
from satrap.tools.tune.study import INTERRUPTED, KILLED, Study, StudyResult, Trial
from satrap.tools.tune.trial import OUT_OF_TIME, Setting, run
from satrap.tools.tune.words import heading, space_lines, trial_line
from satrap.train import Observer
from satrap.train.progress.plateau_control import PlateauControl

STUDY, BEST, TRIALS, RECIPE = "study.db", "best.yaml", "trials", "recipe.yaml"
"""Content of a search folder; the recipe is the original one."""

FREE = ("tune", "about", "checkpoint")
"""Sections that may change between calls of a search, because trials stay comparable."""

UNDECIDED = (KILLED, INTERRUPTED, OUT_OF_TIME)
"""Reasons of ended trials that have no result."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits of a search, counted over all calls; None: no limit.

    Args:
        trials: number of trials, including failed ones.
        seconds: total time of all trials.
    """

    trials: int | None = None
    seconds: float | None = None


def tune(
    recipe: Recipe,
    output: str | None = None,
    *,
    limits: SearchLimits = SearchLimits(),
    seed: int = 1,
    observers: Sequence[Observer] = (),
    notice: Callable[[str], None] = lambda _: None,
) -> StudyResult:
    """Train variants of a recipe; `best.yaml` in the folder is always the best recipe so far.

    The first trial is the recipe itself. Each trial is scored on the validation rows by the recipe's metric
    for early stopping, and pruned after an epoch in which it is below the median. Test rows are not read.

    Args:
        recipe: the recipe to vary; its `tune` section defines what else to try.
        output: folder of the search, default `runs/<recipe>-tune`. An existing search there is resumed.
        limits: when to stop; default never.
        seed: seed of the proposals.
        observers: observers of each trial's training.
        notice: called with each line of the trial table and each notice from training the original recipe.

    Raises:
        ConfigError, DataError: the recipe has no validation rows, the search space is empty, the folder has
            other content, or another search is running there.
        CheckpointError: the trial database is damaged.
    """
    space = space_of(recipe)
    _check_validation(recipe)
    metric, higher = PlateauControl.of(training_options(recipe)).metric(criterion(recipe.schema().labels))
    folder = Path(output or f"{RUNS}/{recipe.name}-tune")
    _check_free(folder)
    with locked(folder, "search"), closing(Study(folder / STUDY, space, higher=higher, seed=seed)) as study:
        _check_same(recipe, space, study, folder)
        search = _Search(recipe, space, study, folder, metric, limits, notice)
        for line in [*space_lines(space), "", heading(metric)]:
            notice(line)
        interrupted = search.go(observers)
        importance, counted = study.importance()
        return StudyResult(
            folder,
            metric,
            space,
            len(study.trials()),
            study.best(),
            study.own(),
            importance,
            counted,
            interrupted,
        )


@dataclass
class _Search:
    recipe: Recipe
    space: tuple[Dimension, ...]
    study: Study
    folder: Path
    metric: str
    limits: SearchLimits
    notice: Callable[[str], None]

    def go(self, observers: Sequence[Observer]) -> bool:
        """Run trials until the search ends; return whether the user interrupted it."""
        best = None
        for trial in self.study.trials():
            best = self._tell(trial, best)
        # A checkpoint would outlive its trial, and all trials would share one location.
        none: dict[KeyPath, Any] = {
            ("checkpoint", key): None for key in ("url", "every_steps", "delta_every_steps")
        }
        base, going = self.recipe.changed(none), True
        try:
            with signal_handlers({signal.SIGTERM: signal.default_int_handler}):
                while going and (seconds_left := self._seconds_left()) > 0 and not self._enough():
                    deadline = time.monotonic() + seconds_left
                    setting = Setting(self.folder / TRIALS, self.metric, deadline, observers, self.notice)
                    going = self._next(base, setting)
                    best = self._tell(self.study.trials()[-1], best)
        except KeyboardInterrupt:
            going = False
        return not going

    def _seconds_left(self) -> float:
        if self.limits.seconds is None:
            return math.inf
        return self.limits.seconds - sum(trial.seconds for trial in self.study.trials())

    def _enough(self) -> bool:
        """Return whether the trial limit is reached, or every combination was tried."""
        trials = self.study.trials()
        tried = {tuple(sorted(trial.choice.items())) for trial in trials if trial.why not in UNDECIDED}
        most = math.inf if self.limits.trials is None else self.limits.trials
        return len(trials) >= most or len(tried) >= math.prod(len(trial.options) for trial in self.space)

    def _next(self, base: Recipe, setting: Setting) -> bool:
        """Run a trial; return False if the user interrupts the search."""
        trial = self.study.ask()
        for other in self.study.trials():
            if other.choice == trial.choice and other.why not in UNDECIDED:
                trial.repeat(other)
                return True
        try:
            recipe = chosen(base, self.space, trial.choice)
        except ConfigError as error:  # an unsupported combination of options
            trial.fail(error.what, 0.0)
            return True
        return run(recipe, trial, setting)

    def _tell(self, trial: Trial, before: Trial | None) -> Trial | None:
        """Print the line of a trial and write the best recipe; return the best trial."""
        best = self.study.best(trial.number)
        improved = best is not None and best.number == trial.number
        self.notice(trial_line(trial, self.space, improved=improved))
        if best is not None and best != before:
            write_best(self.folder / BEST, self.recipe, self.space, best, self.study.own(), self.metric)
        return best


def _check_validation(recipe: Recipe) -> None:
    if open_part(recipe, recipe.schema(), "validation") is None:
        raise ConfigError(
            "the recipe has no validation rows",
            where=recipe.source.where(("data",)),
            why="trials are compared on rows that are used neither for training nor for the test",
            fix="set data.validation, or split data.train: data.split: {modulo: 10, validation: [9]}",
        )


def _check_free(folder: Path) -> None:
    """Raise `ConfigError` if the folder contains a run."""
    if not (folder / STUDY).exists() and any((folder / name).exists() for name in OWN):
        raise ConfigError(
            "the output folder contains a run, not a search", where=str(folder), fix="choose another --output"
        )


def _check_same(recipe: Recipe, space: Sequence[Dimension], study: Study, folder: Path) -> None:
    """Save the recipe and space of the search; raise `ConfigError` if the folder has another search."""
    saved = folder / RECIPE
    if not saved.exists():
        write_whole(saved, to_yaml(recipe.resolved()))
    before, now = (
        {dotted(path): value for path, value in leaves(r.resolved()) if path[0] not in FREE}
        for r in (load(saved), recipe)
    )
    tried = {dimension.key: [option.text for option in dimension.options] for dimension in space}
    for a, b in ((before, now), (study.recall("space", tried), tried)):
        for key in {**a, **b}:
            if a.get(key) != b.get(key):
                raise ConfigError(
                    f"the folder contains a search of another recipe: {key} differs",
                    where=str(folder),
                    why="trials of different recipes cannot be compared",
                    fix="choose another --output, or remove the folder",
                )
