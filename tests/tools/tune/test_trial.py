from pathlib import Path

import pytest

from satrap.config import Recipe, load
from satrap.errors import ConfigError
from satrap.tools.tune.space import space_of
from satrap.tools.tune.study import Open, Study
from satrap.tools.tune.trial import OUT_OF_TIME, Setting, run
from tests.launch.runs import frame, make_recipe


def begun(tmp_path: Path, *overrides: str) -> tuple[Recipe, Study, Open]:
    recipe = load(make_recipe(tmp_path, rows=frame(300)), overrides)
    study = Study(tmp_path / "study.db", space_of(recipe), higher=True)
    return recipe, study, study.ask()


def test_snapshots_do_not_outlive_their_trial(tmp_path: Path) -> None:
    recipe, study, trial = begun(tmp_path, "checkpoint.every_steps=2")
    assert run(recipe, trial, Setting(tmp_path, "auc"))
    assert (tmp_path / "1" / "metrics.json").exists()
    assert not (tmp_path / "1" / "checkpoints").exists()
    study.close()


def test_what_a_killed_trial_left_is_replaced(tmp_path: Path) -> None:
    recipe, study, trial = begun(tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "recipe.yaml").write_text("of a killed trial")
    assert run(recipe, trial, Setting(tmp_path, "auc"))
    assert study.trials()[0].state == "complete"
    study.close()


def test_trials_but_the_recipe_end_at_the_deadline(tmp_path: Path) -> None:
    recipe, study, trial = begun(tmp_path)
    late = Setting(tmp_path, "auc", deadline=0.0)
    assert run(recipe, trial, late)
    assert run(recipe, study.ask(), late)
    first, second = study.trials()
    assert (first.state, second.state, second.why) == ("complete", "pruned", OUT_OF_TIME)
    study.close()


def test_an_error_of_the_recipe_itself_is_raised_and_one_of_others_noted(tmp_path: Path) -> None:
    recipe, study, trial = begun(tmp_path)
    wrong = recipe.changed({("model", "dropout"): 2})
    with pytest.raises(ConfigError, match="dropout"):
        run(wrong, trial, Setting(tmp_path, "auc"))
    assert run(wrong, study.ask(), Setting(tmp_path, "auc"))
    assert ["dropout" in one.why for one in study.trials()] == [True, True]
    study.close()
