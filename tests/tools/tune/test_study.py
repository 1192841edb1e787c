from pathlib import Path

import numpy as np
import optuna
import pytest

from satrap.errors import CheckpointError
from satrap.tools.tune.space import Dimension, Option
from satrap.tools.tune.study import KILLED, RANDOM_TRIALS, RECIPE_TRIES, Study


def space(keys: int = 2, options: int = 5) -> list[Dimension]:
    made = tuple(Option(str(i), {("training", "seed"): i} if i != 2 else {}) for i in range(options))
    return [Dimension(f"key{number}", made, own=2, ordered=number != 1) for number in range(keys)]


def opened(tmp_path: Path, *, keys: int = 2, higher: bool = True, seed: int = 1) -> Study:
    tmp_path.mkdir(exist_ok=True)
    return Study(tmp_path / "study.db", space(keys), higher=higher, seed=seed)


def test_the_first_trial_is_the_recipe_and_is_never_given_up(tmp_path: Path) -> None:
    study = opened(tmp_path)
    first = study.ask()
    assert (first.number, first.recipe, first.choice) == (1, True, {"key0": 2, "key1": 2})
    assert not first.scored(0.1, 1.0)
    first.complete(0.1, 2.0)
    assert not study.ask().recipe
    [trial] = study.trials()
    assert (trial.state, trial.value, trial.passes, trial.seconds) == ("complete", 0.1, 1, 2.0)
    study.close()


@pytest.mark.slow
@pytest.mark.parametrize("higher", [True, False])
def test_a_trial_is_given_up_when_its_best_is_worse_than_the_median(tmp_path: Path, higher: bool) -> None:
    random, study = np.random.default_rng(5), opened(tmp_path, higher=higher)
    curves = random.random((RANDOM_TRIALS, 3))
    for curve in curves:
        trial = study.ask()
        assert not any(trial.scored(value, 1.0) for value in curve)
        trial.complete(float(curve.max() if higher else curve.min()), 1.0)
    sign, given_up = 1 if higher else -1, 0
    for curve in random.random((10, 3)):
        trial = study.ask()
        for i, value in enumerate(curve):
            worse = (sign * curve[: i + 1]).max() < np.median(sign * curves[:, i])
            assert trial.scored(float(value), 1.0) == worse
            if worse:
                trial.give_up("worse", 1.0)
                given_up += 1
                break
        else:
            trial.fail("as if", 1.0)  # else it would count in the next median
    assert 0 < given_up < 10
    study.close()


def test_a_killed_trial_has_failed_and_the_recipe_is_tried_again_but_not_for_ever(tmp_path: Path) -> None:
    for count in range(RECIPE_TRIES):
        study = opened(tmp_path)
        assert [one.why for one in study.trials()] == [KILLED] * count
        assert study.ask().recipe
        study.close()
    study = opened(tmp_path)
    assert not study.ask().recipe
    assert study.best() is None
    study.close()


def play(study: Study, count: int) -> None:
    for _ in range(count):
        trial = study.ask()
        trial.complete(-sum((number - 3) ** 2 for number in trial.choice.values()), 1.0)


@pytest.mark.slow
def test_a_search_that_is_opened_again_tries_the_same(tmp_path: Path) -> None:
    whole = opened(tmp_path / "whole", keys=5)
    play(whole, 8)
    for count in (3, 5):
        part = opened(tmp_path / "part", keys=5)
        play(part, count)
        choices = [one.choice for one in part.trials()]
        part.close()
    assert choices == [one.choice for one in whole.trials()]
    other = opened(tmp_path / "other", keys=5, seed=2)
    play(other, 8)
    assert choices != [one.choice for one in other.trials()]
    best = whole.best()
    assert best is not None
    assert best.value == max(one.value for one in whole.trials() if one.value is not None) > -6
    whole.close()
    other.close()


@pytest.mark.slow
def test_most_trials_are_like_the_best_one_but_for_four_keys(tmp_path: Path) -> None:
    study = opened(tmp_path, keys=8)
    play(study, 1)
    differs = []
    for _ in range(11):
        best = study.best()
        assert best is not None
        play(study, 1)
        tried = study.trials()[-1].choice
        differs.append(sum(tried[key] != best.choice[key] for key in tried))
    assert sum(count <= 4 for count in differs) >= 7
    assert max(differs) > 4
    study.close()


def test_equal_trials_the_first_is_best(tmp_path: Path) -> None:
    study = opened(tmp_path)
    for _ in range(3):
        study.ask().complete(0.5, 1.0)
    best = study.best()
    assert best is not None
    assert best.recipe
    study.close()


@pytest.mark.slow
def test_importance_finds_the_key_that_decides(tmp_path: Path) -> None:
    study = opened(tmp_path, keys=3)
    assert study.importance() == ({}, 0)
    for _ in range(16):
        trial = study.ask()
        value = float(trial.choice["key2"] == 4) + trial.choice["key0"] / 1000
        if value < 1:
            trial.scored(value, 1.0)
            trial.give_up("worse", 1.0)  # counts, too
        else:
            trial.complete(value, 1.0)
    shares, count = study.importance()
    assert count == 16
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["key2"] > 0.5
    study.close()


@pytest.mark.parametrize(
    ("values", "tells"),
    [
        ([], False),
        ([3, 2, 1], False),  # too few
        ([2, 1, 1, 1], True),
        ([2, 1, 1, 1, 1], False),  # the best quarter, two of five, holds an ordinary one
        ([2, 2, 1, 1, 1], True),
    ],
)
def test_importance_needs_some_trials_that_are_better_than_the_others(
    tmp_path: Path, values: list[float], tells: bool
) -> None:
    study = opened(tmp_path)
    made = [
        optuna.trial.create_trial(
            params={"key0": i % 5, "key1": 4 - i % 3}, distributions=study._distributions, value=float(value)
        )
        for i, value in enumerate(values)
    ]
    study._study.add_trials(made)
    shares, count = study.importance()
    assert (count, sum(shares.values()) == pytest.approx(1)) == (len(values), tells)
    assert list(shares) == [] or set(shares) == {"key0", "key1"}
    study.close()


def test_a_trial_is_free_in_four_keys_around_the_best_one_and_each_third_in_all(tmp_path: Path) -> None:
    study = opened(tmp_path, keys=6)
    study.ask().complete(1.0, 1.0)
    fixed = []
    for value in (2.0, 0.0, 0.0, 0.0):
        best = study.best()
        trial = study.ask()
        fixed.append(study._study.trials[-1].system_attrs.get("fixed_params", {}))
        assert best is not None
        assert fixed[-1].items() <= best.choice.items()
        trial.complete(value, 1.0)
    assert [len(one) for one in fixed] == [2, 2, 0, 2]
    first, second = study.best(1), study.best(2)
    assert first is not None
    assert second is not None
    assert (first.number, second.number, study.best(0)) == (1, 2, None)
    study.close()


def test_with_four_keys_all_are_free(tmp_path: Path) -> None:
    study = opened(tmp_path, keys=4)
    study.ask().complete(1.0, 1.0)
    choices = []
    for _ in range(3):
        trial = study.ask()
        choices.append(tuple(trial.choice.values()))
        trial.complete(0.0, 1.0)
        assert "fixed_params" not in study._study.trials[-1].system_attrs
    assert len(set(choices)) == 3
    study.close()


@pytest.mark.parametrize(("higher", "value"), [(True, 0.6), (False, 0.2)])
def test_a_trial_that_was_given_up_has_its_best_value(tmp_path: Path, higher: bool, value: float) -> None:
    study = opened(tmp_path, higher=higher)
    trial = study.ask()
    for scored in (0.2, 0.6, 0.4):
        trial.scored(scored, 5.0)
    trial.give_up("worse", 7.0)
    [found] = study.trials()
    assert (found.state, found.value, found.passes, found.seconds) == ("pruned", value, 3, 7.0)
    assert (found.why, found.recipe, study.own()) == ("worse", True, found)
    study.close()


def test_the_same_results_tell_nothing(tmp_path: Path) -> None:
    study = opened(tmp_path)
    for _ in range(8):
        study.ask().complete(0.5, 1.0)
    assert study.importance() == ({}, 8)
    study.close()


def test_a_repeated_trial_has_the_same_result(tmp_path: Path) -> None:
    study = opened(tmp_path)
    study.ask().complete(0.5, 9.0)
    pruned = study.ask()
    pruned.scored(0.25, 1.0)
    pruned.give_up("worse", 1.0)
    study.ask().fail("diverged", 1.0)
    for one in study.trials():
        study.ask().repeat(one)
    assert [(one.state, one.value, one.why) for one in study.trials()[3:]] == [
        ("complete", 0.5, "as trial 1"),
        ("pruned", 0.25, "as trial 2"),
        ("failed", None, "as trial 3"),
    ]
    assert sum(one.seconds for one in study.trials()[3:]) == 0
    study.close()


def test_a_damaged_file_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_bytes(b"no database " * 1000)
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        opened(tmp_path)
    assert caught.value.where.endswith("study.db")
    assert len(str(caught.value).splitlines()) == 4
