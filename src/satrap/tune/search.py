"""A search: trial after trial in a folder, until there were enough; it goes on where it was ended."""

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
from satrap.launch.folder import OWN, RUNS, locked, write_whole
from satrap.launch.resume import signal_handlers
from satrap.metrics import criterion
from satrap.train import Observer
from satrap.tune.best import write_best
from satrap.tune.space import Dimension, chosen, space_of
from satrap.tune.study import INTERRUPTED, KILLED, Found, Study, Trial
from satrap.tune.trial import OUT_OF_TIME, Setting, run
from satrap.tune.words import heading, space_lines, trial_line

STUDY, BEST, TRIALS, RECIPE = "study.db", "best.yaml", "trials", "recipe.yaml"
"""What is in the folder of a search; the recipe is the one it began with."""

FREE = ("tune", "about", "checkpoint")
"""Sections that may change while a search goes on: trials stay comparable."""

UNDECIDED = (KILLED, INTERRUPTED, OUT_OF_TIME)
"""Why trials ended of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a search ends, counted over all calls; None: never.

    Args:
        trials: number of trials, with those that failed.
        seconds: time of all trials together.
    """

    trials: int | None = None
    seconds: float | None = None


def tune(
    recipe: Recipe,
    output: str | None = None,
    *,
    limits: Limits = Limits(),
    seed: int = 1,
    observers: Sequence[Observer] = (),
    notice: Callable[[str], None] = lambda _: None,
) -> Found:
    """Train variants of a recipe; `best.yaml` in the folder is always the best recipe so far.

    The first trial is the recipe itself. Each is scored on the validation rows by the metric that the recipe
    stops on, and given up after a pass at which it is worse than the median. Rows of the test are not read.

    Args:
        recipe: what to vary; `tune` in it says what else to try.
        output: folder of the search, default `runs/<recipe>-tune`. If it holds this search, it goes on.
        limits: when to end; default never.
        seed: of what is tried.
        observers: of the training of each trial.
        notice: called with each line of the table of trials, and with what the training of the recipe
            itself has to say.

    Raises:
        ConfigError, DataError: the recipe has no validation rows, nothing can be varied, the folder holds
            something else or another search is at work there.
        CheckpointError: the file of trials is damaged.
    """
    space = space_of(recipe)
    _check_validation(recipe)
    metric, higher = training_options(recipe).control().metric(criterion(recipe.schema().labels))
    folder = Path(output or f"{RUNS}/{recipe.name}-tune")
    _check_free(folder)
    with locked(folder, "search"), closing(Study(folder / STUDY, space, higher=higher, seed=seed)) as study:
        _check_same(recipe, space, study, folder)
        search = _Search(recipe, space, study, folder, metric, limits, notice)
        for line in [*space_lines(space), "", heading(metric)]:
            notice(line)
        interrupted = search.go(observers)
        importance, counted = study.importance()
        return Found(
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
    limits: Limits
    notice: Callable[[str], None]

    def go(self, observers: Sequence[Observer]) -> bool:
        """Run trials until the search ends; return whether the user has ended it."""
        best = None
        for trial in self.study.trials():
            best = self._tell(trial, best)
        # A checkpoint would outlive its trial, and there is one place for those of all trials.
        none: dict[KeyPath, Any] = {
            ("checkpoint", key): None for key in ("url", "every_steps", "delta_every_steps")
        }
        base, going = self.recipe.changed(none), True
        try:
            with signal_handlers({signal.SIGTERM: signal.default_int_handler}):
                while going and (left := self._seconds_left()) > 0 and not self._enough():
                    deadline = time.monotonic() + left
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
        """Return whether there were enough trials, or every combination was tried."""
        trials = self.study.trials()
        tried = {tuple(sorted(one.choice.items())) for one in trials if one.why not in UNDECIDED}
        most = math.inf if self.limits.trials is None else self.limits.trials
        return len(trials) >= most or len(tried) >= math.prod(len(one.options) for one in self.space)

    def _next(self, base: Recipe, setting: Setting) -> bool:
        """Run a trial; return False if the user wants the search to end."""
        trial = self.study.ask()
        for other in self.study.trials():
            if other.choice == trial.choice and other.why not in UNDECIDED:
                trial.repeat(other)
                return True
        try:
            recipe = chosen(base, self.space, trial.choice)
        except ConfigError as error:  # options that do not go together
            trial.fail(error.what, 0.0)
            return True
        return run(recipe, trial, setting)

    def _tell(self, trial: Trial, before: Trial | None) -> Trial | None:
        """Print the line of a trial, and write the recipe of the best one; return the best one."""
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
            why="trials are compared on rows that are neither trained nor kept for the test",
            fix="give data.validation, or take some of data.train: data.split: {modulo: 10, validation: [9]}",
        )


def _check_free(folder: Path) -> None:
    """Raise `ConfigError` if the folder of a search holds a run."""
    if not (folder / STUDY).exists() and any((folder / name).exists() for name in OWN):
        raise ConfigError(
            "the output folder holds a run, not a search", where=str(folder), fix="choose another --output"
        )


def _check_same(recipe: Recipe, space: Sequence[Dimension], study: Study, folder: Path) -> None:
    """Keep what the search is about; raise `ConfigError` if it is about something else already."""
    kept = folder / RECIPE
    if not kept.exists():
        write_whole(kept, to_yaml(recipe.resolved()))
    before, now = (
        {dotted(path): value for path, value in leaves(r.resolved()) if path[0] not in FREE}
        for r in (load(kept), recipe)
    )
    tried = {one.key: [option.text for option in one.options] for one in space}
    for a, b in ((before, now), (study.recall("space", tried), tried)):
        for key in {**a, **b}:
            if a.get(key) != b.get(key):
                raise ConfigError(
                    f"the folder holds a search of another recipe: {key} differs",
                    where=str(folder),
                    why="its trials cannot be compared with those of this one",
                    fix="choose another --output, or remove the folder",
                )
