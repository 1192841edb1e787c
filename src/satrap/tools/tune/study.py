"""Optuna in a search: next proposals, pruning of trials, importance of keys; stored in SQLite."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from satrap.errors import CheckpointError, ConfigError
from satrap.tools.tune.space import Dimension

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
    from optuna.exceptions import StorageInternalError
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from optuna.pruners import MedianPruner
    from optuna.samplers import TPESampler
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, TrialState, create_trial
    from sqlalchemy import URL
    from sqlalchemy.exc import SQLAlchemyError
except ImportError as error:
    raise ConfigError("satrap tune needs Optuna", why=str(error), fix="pip install 'satrap[tune]'") from error

RANDOM_TRIALS = 5
"""Complete trials before the sampler uses results and before trials are pruned."""

MEDIAN_OF = 3
"""Least number of trials scored at an epoch for its median."""

BEST_SHARE = 0.25
"""Share of the trials, the best ones, that importance compares with the rest."""

ENOUGH = 4
"""Least number of trials for importance."""

FREE_KEYS = 4
"""Keys that a trial varies around the best one; if all keys vary, few trials match a fair recipe."""

WIDE = 3
"""Every third trial varies all keys."""

RECIPE_TRIES = 3
"""Attempts to run the original recipe if its process is killed each time."""

KILLED, INTERRUPTED = "its process was killed", "interrupted"
_SECONDS, _WHY, _RECIPE = "seconds", "why", "recipe"
State = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial that has ended.

    Args:
        number: number, from 1.
        choice: key -> number of its option.
        state: complete, pruned (stopped after an epoch) or failed.
        value: validation metric; the best value of a pruned trial; None for a failed one.
        passes: number of evaluations on the validation rows, one per epoch.
        seconds: duration; for a killed trial up to its last evaluation.
        why: reason for failure or pruning.
        recipe: whether this is the original recipe.
    """

    number: int
    choice: Mapping[str, int]
    state: State
    value: float | None
    passes: int
    seconds: float
    why: str
    recipe: bool


@dataclass(frozen=True, slots=True)
class StudyResult:
    """Results of a search so far.

    Args:
        folder: folder of the search.
        metric: validation metric that ranks trials.
        space: the search space.
        trials: number of trials.
        best: the best complete trial; None if there is none.
        recipe: the trial of the original recipe, if it has ended.
        importance: key -> share in what distinguishes the best trials from all `counted` trials.
        counted: number of trials with a value.
        interrupted: whether the user interrupted the search.
    """

    folder: Path
    metric: str
    space: tuple[Dimension, ...]
    trials: int
    best: Trial | None
    recipe: Trial | None
    importance: Mapping[str, float]
    counted: int
    interrupted: bool


class Open:
    """A running trial; `complete`, `give_up` or `fail` ends it."""

    def __init__(self, study: optuna.Study, trial: optuna.Trial) -> None:
        self._study, self._trial = study, trial
        self._passes = 0
        self.number = trial.number + 1
        self.choice: dict[str, int] = dict(trial.params)
        self.recipe = bool(trial.user_attrs.get(_RECIPE))

    def scored(self, value: float, seconds: float) -> bool:
        """Record the metric after an epoch; return whether the trial is below the median of the others."""
        self._trial.report(value, self._passes)
        self._passes += 1
        self._trial.set_user_attr(_SECONDS, seconds)
        return not self.recipe and self._trial.should_prune()

    def complete(self, value: float, seconds: float) -> None:
        """End the trial with its result."""
        self._trial.set_user_attr(_SECONDS, seconds)
        self._study.tell(self._trial, value)

    def give_up(self, why: str, seconds: float) -> None:
        """Prune the trial."""
        self._end(TrialState.PRUNED, why, seconds)

    def repeat(self, other: Trial) -> None:
        """End the trial with the result of another trial with the same choice."""
        why = f"as trial {other.number}"
        if other.value is None or other.state == "failed":
            self.fail(why, 0.0)
        elif other.state == "pruned":
            self.scored(other.value, 0.0)
            self.give_up(why, 0.0)
        else:
            self._trial.set_user_attr(_WHY, why)
            self.complete(other.value, 0.0)

    def fail(self, why: str, seconds: float) -> None:
        """End the trial without a result."""
        self._end(TrialState.FAIL, why, seconds)

    def _end(self, state: TrialState, why: str, seconds: float) -> None:
        self._trial.set_user_attr(_SECONDS, seconds)
        self._trial.set_user_attr(_WHY, why)
        self._study.tell(self._trial, state=state)


class Study:
    """The trials of a search, in a file; trials left running by a killed process count as failed.

    Args:
        file: SQLite database, created if it does not exist.
        space: the search space; must be the same whenever the file is opened.
        higher: whether a higher value is better.
        seed: seed of the proposals, which depend only on it and on earlier trials.

    Raises:
        CheckpointError: the file is damaged.
    """

    def __init__(self, file: Path, space: Sequence[Dimension], *, higher: bool, seed: int = 1) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._file, self._seed, self._higher = file, seed, higher
        self._distributions = {dimension.key: _distribution(dimension) for dimension in space}
        self._own = {dimension.key: dimension.own for dimension in space}
        with self._reading():
            if not file.exists():  # created atomically
                partial = file.with_suffix(".partial")
                partial.unlink(missing_ok=True)
                self._opened(partial)
                self.close()
                os.replace(partial, file)
            self._study = self._opened(file)
            for running in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                self._study.tell(running.number, state=TrialState.FAIL)

    def _opened(self, file: Path) -> optuna.Study:
        self._storage = RDBStorage(str(URL.create("sqlite", database=str(file.absolute()))))
        return optuna.create_study(
            storage=self._storage,
            study_name="satrap",
            direction="maximize" if self._higher else "minimize",
            pruner=MedianPruner(n_startup_trials=RANDOM_TRIALS, n_min_trials=MEDIAN_OF),
            load_if_exists=True,
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
            raise CheckpointError(
                "the trials of the search cannot be read",
                where=str(self._file),
                why=str(error.__cause__ or error).splitlines()[0][:200],
                fix="choose another --output, or remove the file to start the search over",
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def recall(self, key: str, value: Any) -> Any:
        """Return the stored value of a key; store and return `value` if there is none."""
        if key not in self._study.user_attrs:
            self._study.set_user_attr(key, value)
        return self._study.user_attrs[key]

    def trials(self) -> list[Trial]:
        """Return the trials that have ended, in order."""
        ended = self._study.get_trials(deepcopy=False)
        return [self._trial(trial) for trial in ended if trial.state.is_finished()]

    def _trial(self, one: FrozenTrial) -> Trial:
        states: dict[TrialState, State] = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}
        state = states.get(one.state, "failed")
        scored = list(one.intermediate_values.values())
        value = one.value if state == "complete" else None
        if state == "pruned" and scored:
            value = max(scored) if self._higher else min(scored)
        return Trial(
            number=one.number + 1,
            choice=self._own | one.params,
            state=state,
            value=value,
            passes=len(scored),
            seconds=one.user_attrs.get(_SECONDS, 0.0),
            why=one.user_attrs.get(_WHY, KILLED if state == "failed" else ""),
            recipe=bool(one.user_attrs.get(_RECIPE)),
        )

    def best(self, most: float = math.inf) -> Trial | None:
        """Return the best complete trial up to number `most`, the first of equals; None if there is none."""
        whole = [trial for trial in self.trials() if trial.state == "complete" and trial.number <= most]
        return min(whole, key=self._worse, default=None)

    def own(self) -> Trial | None:
        """Return the last ended trial of the original recipe; None if there is none."""
        return next((trial for trial in reversed(self.trials()) if trial.recipe), None)

    def _worse(self, trial: Trial) -> float:
        assert trial.value is not None
        return -trial.value if self._higher else trial.value

    def ask(self) -> Open:
        """Start the next trial: the original recipe until it has ended, then the sampler's proposals.

        Most trials vary only a few keys of the best trial so far.
        """
        tried, number = [trial for trial in self.trials() if trial.recipe], len(self._study.trials)
        random = Random(f"{self._seed} {number}")
        if all(trial.why in (KILLED, INTERRUPTED) for trial in tried) and len(tried) < RECIPE_TRIES:
            self._study.enqueue_trial(self._own, user_attrs={_RECIPE: True})
        elif number % WIDE and len(self._own) > FREE_KEYS:
            best, free = self.best(), random.sample(sorted(self._own), FREE_KEYS)
            like = self._own if best is None else best.choice
            self._study.enqueue_trial({key: like[key] for key in self._own if key not in free})
        self._study.sampler = TPESampler(n_startup_trials=RANDOM_TRIALS, seed=random.randrange(2**31))
        return Open(self._study, self._study.ask(self._distributions))

    def importance(self) -> tuple[dict[str, float], int]:
        """Return (key -> share in what distinguishes the best quarter of the trials, number of trials).

        Pruned trials count with their best value. The shares add up to 1; they are empty without enough
        different results. PED-ANOVA: Watanabe et al., IJCAI 2023.
        """
        scored = [trial for trial in self.trials() if trial.value is not None]
        values = sorted(map(self._worse, scored))
        bound = values[math.ceil(BEST_SHARE * len(values)) - 1] if values else 0.0
        if len(values) < ENOUGH or bound == values[-1]:
            return {}, len(values)
        copy = optuna.create_study(direction="minimize")
        copy.add_trials(
            [
                create_trial(
                    params=dict(trial.choice), distributions=self._distributions, value=self._worse(trial)
                )
                for trial in scored
            ]
        )
        evaluator = PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
        return get_param_importances(copy, evaluator=evaluator), len(values)


def _distribution(one: Dimension) -> BaseDistribution:
    numbers = range(len(one.options))
    return IntDistribution(0, numbers[-1]) if one.ordered else CategoricalDistribution(numbers)
