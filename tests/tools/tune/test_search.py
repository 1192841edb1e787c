"""Whole searches, with real trainings."""

import fcntl
import json
import os
from pathlib import Path

import pytest

from satrap import launch
from satrap.config import Recipe, load
from satrap.errors import ConfigError, DataError, OwnCodeError
from satrap.tools.tune import BEST, SearchLimits, StudyResult, tune
from satrap.train import Observer, Progress
from tests.launch.runs import RECIPE, frame, make_recipe

SYNC = RECIPE.replace("mode: hybrid, staleness: 2", "mode: sync")
RATES = ("tune.usual=false", "tune.search.dense.optimizer.lr=[0.0001, 0.001, 0.01, 0.03, 0.1]")


def loaded(folder: Path, *overrides: str, text: str = SYNC, rows: int = 800) -> Recipe:
    return load(make_recipe(folder, text, frame(rows)), overrides)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recipe, StudyResult, list[str]]:
    folder = tmp_path_factory.mktemp("tune")
    recipe, said = loaded(folder, *RATES), list[str]()
    return folder, recipe, tune(recipe, str(folder / "out"), limits=SearchLimits(4), notice=said.append), said


def test_the_best_recipe_trains_to_the_figure_of_its_trial(
    found: tuple[Path, Recipe, StudyResult, list[str]],
) -> None:
    folder, recipe, result, _ = found
    assert (result.trials, result.metric, result.interrupted) == (4, "auc", False)
    own = launch.train(recipe, str(folder / "own")).result.metrics["auc"]
    assert result.recipe is not None
    assert result.recipe.value == own  # the first trial is the recipe
    best = launch.train(load(folder / "out" / BEST), str(folder / "best")).result.metrics["auc"]
    assert result.best is not None
    assert result.best.value == best >= own


METRIC = """
def error(labels, predictions):
    return ((labels - predictions) ** 2).mean()

error.higher_is_better = False
"""


def test_a_metric_of_the_users_own_decides(tmp_path: Path) -> None:
    """Of a lower error, with which the recipe is not the best; `best.yaml` finds the function's file."""
    (tmp_path / "own.py").write_text(METRIC)
    text = SYNC.replace("epochs: 2", 'epochs: 2, metrics: ["own.py:error"], monitor: error')
    recipe = loaded(tmp_path, "tune.usual=false", "tune.search.dense.optimizer.lr=[1.0e-9, 0.1]", text=text)
    said: list[str] = []
    result = tune(recipe, str(tmp_path / "out"), limits=SearchLimits(6), notice=said.append)
    figures = [
        json.loads(file.read_text())["validation"]["error"]
        for file in (tmp_path / "out" / "trials").glob("*/metrics.json")
    ]
    assert result.best is not None
    assert result.best.value == min(figures) < max(figures)
    best = launch.train(load(tmp_path / "out" / BEST), str(tmp_path / "best")).result.metrics["error"]
    assert best == result.best.value
    assert "trial     error epochs" in said[said.index("") + 1]


def test_trials_keep_their_recipe_and_figures_but_no_model(
    found: tuple[Path, Recipe, StudyResult, list[str]],
) -> None:
    folder, _, result, said = found
    first = folder / "out" / "trials" / "1"
    assert {path.name for path in first.iterdir()} == {
        "recipe.yaml",
        "metrics.json",
        "metrics.jsonl",
        "sessions.jsonl",
        "tensorboard",
    }
    metrics = json.loads((first / "metrics.json").read_text())
    assert metrics["test"] == {}
    assert result.recipe is not None
    assert metrics["validation"]["auc"] == result.recipe.value
    assert max(len(line) for line in said if not line.startswith("note:")) <= 80
    assert [line.split()[0] for line in said[-4:]] == ["1", "2", "3", "4"]


def test_a_search_goes_on_and_an_ended_one_only_tells(
    found: tuple[Path, Recipe, StudyResult, list[str]],
) -> None:
    folder, recipe, result, before = found
    said: list[str] = []
    again = tune(recipe, str(folder / "out"), limits=SearchLimits(4), notice=said.append)
    assert again == result
    assert said == [line for line in before if not line.startswith(("starting", "note:"))]
    assert tune(recipe, str(folder / "out"), limits=SearchLimits(5)).trials == 5


def test_another_recipe_or_search_is_refused(found: tuple[Path, Recipe, StudyResult, list[str]]) -> None:
    folder, _, _, _ = found
    others = ((*RATES, "training.epochs=3"), "training.epochs"), (RATES[1:], "embedding.optimizer.lr")
    for overrides, key in others:
        with pytest.raises(ConfigError, match=f"search of another recipe: {key} differs") as caught:
            tune(load(folder / "clicks.yaml", overrides), str(folder / "out"), limits=SearchLimits(1))
        assert "--output" in caught.value.fix


def test_one_search_at_a_time(found: tuple[Path, Recipe, StudyResult, list[str]]) -> None:
    folder, recipe, _, _ = found
    lock = os.open(folder / "out" / "lock", os.O_WRONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="another search is using"):
        tune(recipe, str(folder / "out"))
    os.close(lock)


def test_a_run_folder_is_no_place_for_a_search(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(ConfigError, match="contains a run, not a search"):
        tune(loaded(tmp_path / "a", *RATES), str(tmp_path))


def test_without_validation_rows_nothing_is_started(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, *RATES, "data.split={modulo: 10, test: [9]}")
    with pytest.raises(ConfigError, match="no validation rows") as caught:
        tune(recipe, str(tmp_path / "out"))
    assert "data.split" in caught.value.fix
    assert not (tmp_path / "out").exists()


def test_a_trial_that_diverges_is_noted_and_the_search_goes_on(tmp_path: Path) -> None:
    """After a step with such a rate no output of the network is a number."""
    recipe = loaded(
        tmp_path,
        "tune.usual=false",
        "tune.search.dense.optimizer=[{name: sgd, lr: 1.0e+38}, {name: adam, lr: 0.02}]",
        text=SYNC.replace("epochs: 2", "epochs: 1"),
    )
    said: list[str] = []
    result = tune(recipe, str(tmp_path / "out"), limits=SearchLimits(30), notice=said.append)
    assert [line for line in said if "failed, validation auc is nan" in line]
    assert result.trials < 30  # every combination was tried
    assert result.best is not None


def test_a_recipe_with_a_missing_file_ends_the_search(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, *RATES, "data.validation=gone.csv", "data.split={modulo: 9, test: [0]}")
    with pytest.raises(DataError, match=r"gone\.csv"):
        tune(recipe, str(tmp_path / "out"))


def test_own_code_that_fails_ends_the_search_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(METRIC.replace(".mean()", ".middle()"))
    text = SYNC.replace("epochs: 2", 'epochs: 1, metrics: ["own.py:error"]')
    with pytest.raises(OwnCodeError, match="middle") as raised:
        tune(loaded(tmp_path, *RATES, text=text), str(tmp_path / "out"))
    assert raised.value.where == f"{tmp_path / 'own.py'}:3, in error"


@pytest.mark.slow
def test_a_hopeless_trial_is_given_up(tmp_path: Path) -> None:
    """With a rate of 1e-12 nothing is learned; as the recipe's is fair, the median is better after a pass."""
    recipe = loaded(
        tmp_path,
        "tune.usual=false",
        "tune.search.model.dropout=[0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06]",
        "tune.search.embedding.optimizer.lr=[1.0e-12, 0.1]",
        rows=400,
    )
    said: list[str] = []
    tune(recipe, str(tmp_path / "out"), limits=SearchLimits(12), notice=said.append)
    rows = [line.split() for line in said[-12:]]
    given_up = [row for row in rows if "median:" in row]
    assert given_up
    assert all(row[2] in ("1", "2") for row in given_up)


class Stop(Observer):
    """Presses Ctrl-C in a training, counted over all of them."""

    def __init__(self, training: int) -> None:
        self.left = training

    def started(self, progress: Progress) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_ctrl_c_ends_the_search_which_can_go_on(tmp_path: Path) -> None:
    recipe, out = loaded(tmp_path, *RATES, rows=300), str(tmp_path / "out")
    first = tune(recipe, out, limits=SearchLimits(4), observers=[Stop(2)])
    assert first.interrupted
    assert 2 <= first.trials < 4
    assert (tmp_path / "out" / BEST).exists()
    second = tune(recipe, out, limits=SearchLimits(4))
    assert (second.interrupted, second.trials) == (False, 4)


def test_the_recipe_is_tried_again_if_ctrl_c_met_it(tmp_path: Path) -> None:
    recipe, out = loaded(tmp_path, *RATES, rows=300), str(tmp_path / "out")
    assert tune(recipe, out, limits=SearchLimits(2), observers=[Stop(1)]).best is None
    second = tune(recipe, out, limits=SearchLimits(2))
    assert second.recipe is not None
    assert (second.recipe.number, second.recipe.state) == (2, "complete")


def test_time_is_counted_over_all_calls_and_the_recipe_ends(tmp_path: Path) -> None:
    recipe, out = loaded(tmp_path, *RATES, rows=300), str(tmp_path / "out")
    first = tune(recipe, out, limits=SearchLimits(None, 0.001))
    assert (first.trials, first.best) == (1, first.recipe)
    assert tune(recipe, out, limits=SearchLimits(None, 0.001)).trials == 1
    assert first.recipe is not None
    more = tune(recipe, out, limits=SearchLimits(2, first.recipe.seconds + 0.0001))
    assert (more.trials, more.best) == (2, first.recipe)
