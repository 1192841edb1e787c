"""One trial: trains a variant of the recipe, reports each epoch to the study, and stops when pruned."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from satrap.config import Recipe
from satrap.errors import ConfigError, DataError, OwnCodeError, SatrapError
from satrap.launch import InterruptedRunError, RunFolder, train
from satrap.tools.tune.study import INTERRUPTED, Open
from satrap.train import Observer, Progress

WORSE = "below the median"
OUT_OF_TIME = "out of time"


class _GivenUpError(Exception):
    """Raised to end the training of a trial."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings shared by all trials of a search.

    Args:
        folder: parent of the run folders of trials.
        metric: validation metric that ranks trials.
        deadline: `time.monotonic` at which trials other than the original recipe must end.
        observers: observers of training.
        notice: called with each notice from training the original recipe.
    """

    folder: Path
    metric: str
    deadline: float = math.inf
    observers: Sequence[Observer] = ()
    notice: Callable[[str], None] = lambda _: None


class _Watch(Observer):
    """Reports each epoch's metric to the study, and stops pruned trials."""

    def __init__(self, trial: Open, setting: Setting) -> None:
        self._trial, self._setting, self._begun = trial, setting, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the trial started."""
        return time.monotonic() - self._begun

    def step(self, progress: Progress) -> None:
        if time.monotonic() > self._setting.deadline and not self._trial.recipe:
            raise _GivenUpError(OUT_OF_TIME)

    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        value = metrics[self._setting.metric]
        if math.isfinite(value) and self._trial.scored(value, self.seconds):
            raise _GivenUpError(WORSE)


def run(recipe: Recipe, trial: Open, setting: Setting) -> bool:
    """Train a recipe and end the trial; return False if the user interrupts the search.

    The trial's run folder keeps its recipe, metrics, history and curves.

    Raises:
        ConfigError, DataError, OwnCodeError: the original recipe fails. Failures of other trials are recorded
            as results.
    """
    folder, watch = RunFolder(setting.folder / str(trial.number)), _Watch(trial, setting)
    shutil.rmtree(folder.path, ignore_errors=True)
    try:
        outcome = train(
            recipe,
            str(folder.path),
            trial=True,
            observers=[watch, *setting.observers],
            notice=setting.notice if trial.recipe else lambda _: None,
        )
    except _GivenUpError as reason:
        trial.give_up(str(reason), watch.seconds)
    except (KeyboardInterrupt, InterruptedRunError):
        trial.fail(INTERRUPTED, watch.seconds)
        return False
    except SatrapError as error:
        trial.fail(error.what.splitlines()[0], watch.seconds)
        if trial.recipe and isinstance(error, ConfigError | DataError | OwnCodeError):
            raise
    else:
        if outcome.result.stopped == "stopped":
            trial.fail(INTERRUPTED, watch.seconds)
            return False
        value = outcome.result.metrics.get(setting.metric, math.nan)  # no epoch gave a finite value
        if math.isfinite(value):
            trial.complete(value, watch.seconds)
        else:
            trial.fail(f"validation {setting.metric} is {value}", watch.seconds)
    finally:
        for leftover in (folder.checkpoints, folder.journals, folder.model):
            shutil.rmtree(leftover, ignore_errors=True)
    return True
