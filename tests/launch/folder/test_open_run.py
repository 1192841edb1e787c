"""How a run begins: its folder, what it says, what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from satrap.errors import ConfigError
from satrap.launch.folder.open_run import opened, prepared
from tests.launch.runs import frame, make_recipe
from tests.support.snapshots import written_at_once

SNAPSHOTS = ["checkpoint.every_steps=4"]


def test_a_new_run_says_what_it_begins_with(tmp_path: Path) -> None:
    recipe, said = load(make_recipe(tmp_path), SNAPSHOTS), list[str]()
    folder, recipe = opened(recipe, str(tmp_path / "run"), resume=False, name="", notice=print)
    schema, plan = prepared(recipe, folder, resume=False, notice=said.append)
    assert said == ["starting hybrid: one process"]
    assert (schema.labels[0].name, plan.every_steps) == ("clicked", 4)
    assert folder.recipe_file.exists()


def test_a_resumed_run_says_where_it_goes_on(tmp_path: Path) -> None:
    recipe, said = load(make_recipe(tmp_path, rows=frame(500)), SNAPSHOTS), list[str]()
    with written_at_once():
        launch.train(recipe, str(tmp_path / "run"))
    longer = recipe.changed({("training", "epochs"): 3})
    folder, longer = opened(longer, str(tmp_path / "run"), resume=True, name="", notice=print)
    prepared(longer, folder, resume=True, notice=said.append)
    assert re.match(r"resuming after step \d+, in epoch 2: ", said[1])


def test_a_new_run_does_not_take_over_the_snapshots_of_another(tmp_path: Path) -> None:
    place = f"checkpoint.url={tmp_path / 'snapshots'}"
    recipe = load(make_recipe(tmp_path, rows=frame(500)), [*SNAPSHOTS, place])
    launch.train(recipe, str(tmp_path / "run"))
    folder, again = opened(recipe, str(tmp_path / "other"), resume=False, name="", notice=print)
    with pytest.raises(ConfigError, match="already holds snapshots of another run"):
        prepared(again, folder, resume=False, notice=lambda _: None)
