"""Optuna's part in a search: what to try next, when to give a trial up, what mattered; kept in SQLite."""

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
from satrap.tune.space import Dimension

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
"""Whole trials before the sampler looks at results and before any is given up: what is usual is not known."""

MEDIAN_OF = 3
"""Least number of trials with a figure at a pass for a median."""

BEST_SHARE = 0.25
"""What mattered is what distinguishes this share of the trials, the best ones."""

ENOUGH = 4
"""Least number of trials that can tell what mattered."""

FREE_KEYS = 4
"""Keys that a trial varies around the best one: with all at once, few trials are as good as a fair recipe."""

WIDE = 3
"""One in so many trials varies all keys."""

RECIPE_TRIES = 3
"""How often the recipe itself is tried if its process is killed each time."""

KILLED, INTERRUPTED = "its process was killed", "interrupted"
_SECONDS, _WHY, _RECIPE = "seconds", "why", "recipe"
State = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial that has ended.

    Args:
        number: from 1.
        choice: key -> number of its option.
        state: complete, pruned (given up after a pass) or failed.
        value: of the validation metric; of a pruned one its best; None of a failed one.
        passes: how often the validation rows were scored.
        seconds: how long it took; of a killed one up to its last pass.
        why: why it failed or was given up.
        recipe: whether it is the recipe itself.
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
class Found:
    """What a search has found so far.

    Args:
        folder: of the search.
        metric: of the validation rows that decides.
        space: what is varied.
        trials: their number.
        best: the best one that was not given up; None if there is none.
        recipe: the trial of the recipe itself, if it has ended.
        importance: key -> share of what distinguishes the best trials, `counted` of them.
        interrupted: whether the user ended the search.
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
    """A trial under way; one of `complete`, `give_up` and `fail` ends it."""

    def __init__(self, study: optuna.Study, trial: optuna.Trial) -> None:
        self._study, self._trial = study, trial
        self._passes = 0
        self.number = trial.number + 1
        self.choice: dict[str, int] = dict(trial.params)
        self.recipe = bool(trial.user_attrs.get(_RECIPE))

    def scored(self, value: float, seconds: float) -> bool:
        """Note the metric after a pass; return whether the trial is worse than the median of the others."""
        self._trial.report(value, self._passes)
        self._passes += 1
        self._trial.set_user_attr(_SECONDS, seconds)
        return not self.recipe and self._trial.should_prune()

    def complete(self, value: float, seconds: float) -> None:
        """End it with its result."""
        self._trial.set_user_attr(_SECONDS, seconds)
        self._study.tell(self._trial, value)

    def give_up(self, why: str, seconds: float) -> None:
        """End it before its time."""
        self._end(TrialState.PRUNED, why, seconds)

    def repeat(self, other: Trial) -> None:
        """End it with the result of another trial that was the same."""
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
        """End it without a result."""
        self._end(TrialState.FAIL, why, seconds)

    def _end(self, state: TrialState, why: str, seconds: float) -> None:
        self._trial.set_user_attr(_SECONDS, seconds)
        self._trial.set_user_attr(_WHY, why)
        self._study.tell(self._trial, state=state)


class Study:
    """The trials of a search, in a file; those that a killed process left under way count as failed.

    Args:
        file: SQLite database, made if it is not there.
        space: what is varied; the same whenever the file is opened.
        higher: whether a higher value is better.
        seed: what is tried next depends on it and on the trials before, and on nothing else.

    Raises:
        CheckpointError: the file is damaged.
    """

    def __init__(self, file: Path, space: Sequence[Dimension], *, higher: bool, seed: int = 1) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._file, self._seed, self._higher = file, seed, higher
        self._distributions = {one.key: _distribution(one) for one in space}
        self._own = {one.key: one.own for one in space}
        with self._reading():
            if not file.exists():  # made whole or not at all
                partial = file.with_suffix(".partial")
                partial.unlink(missing_ok=True)
                self._opened(partial)
                self.close()
                os.replace(partial, file)
            self._study = self._opened(file)
            for left in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                self._study.tell(left.number, state=TrialState.FAIL)

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
                fix="give another --output, or remove the file: the search then starts anew",
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def recall(self, key: str, value: Any) -> Any:
        """Return what is kept under a key; `value`, which is then kept, if there is nothing yet."""
        if key not in self._study.user_attrs:
            self._study.set_user_attr(key, value)
        return self._study.user_attrs[key]

    def trials(self) -> list[Trial]:
        """Return the trials that have ended, in order."""
        ended = self._study.get_trials(deepcopy=False)
        return [self._trial(one) for one in ended if one.state.is_finished()]

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
        """Return the best whole trial up to number `most`, of equal ones the first; None if there is none."""
        whole = [one for one in self.trials() if one.state == "complete" and one.number <= most]
        return min(whole, key=self._worse, default=None)

    def own(self) -> Trial | None:
        """Return the trial of the recipe itself, the last one if it was killed before; None if none ended."""
        return next((one for one in reversed(self.trials()) if one.recipe), None)

    def _worse(self, trial: Trial) -> float:
        assert trial.value is not None
        return -trial.value if self._higher else trial.value

    def ask(self) -> Open:
        """Begin the next trial: the recipe itself until it has ended, then what the sampler proposes.

        Most trials are like the best one so far but for a few keys.
        """
        tried, number = [one for one in self.trials() if one.recipe], len(self._study.trials)
        random = Random(f"{self._seed} {number}")
        if all(one.why in (KILLED, INTERRUPTED) for one in tried) and len(tried) < RECIPE_TRIES:
            self._study.enqueue_trial(self._own, user_attrs={_RECIPE: True})
        elif number % WIDE and len(self._own) > FREE_KEYS:
            best, free = self.best(), random.sample(sorted(self._own), FREE_KEYS)
            like = self._own if best is None else best.choice
            self._study.enqueue_trial({key: like[key] for key in self._own if key not in free})
        self._study.sampler = TPESampler(n_startup_trials=RANDOM_TRIALS, seed=random.randrange(2**31))
        return Open(self._study, self._study.ask(self._distributions))

    def importance(self) -> tuple[dict[str, float], int]:
        """Return (key -> share of what distinguishes the best quarter of the trials, number of trials).

        Trials that were given up count with their best value. The shares add up to 1; without enough
        different results there are none. PED-ANOVA: Watanabe et al., IJCAI 2023.
        """
        scored = [one for one in self.trials() if one.value is not None]
        values = sorted(map(self._worse, scored))
        bound = values[math.ceil(BEST_SHARE * len(values)) - 1] if values else 0.0
        if len(values) < ENOUGH or bound == values[-1]:
            return {}, len(values)
        copy = optuna.create_study(direction="minimize")
        copy.add_trials(
            [
                create_trial(
                    params=dict(one.choice), distributions=self._distributions, value=self._worse(one)
                )
                for one in scored
            ]
        )
        evaluator = PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
        return get_param_importances(copy, evaluator=evaluator), len(values)


def _distribution(one: Dimension) -> BaseDistribution:
    numbers = range(len(one.options))
    return IntDistribution(0, numbers[-1]) if one.ordered else CategoricalDistribution(numbers)
