"""A recipe that is simulated with the costs of a machine that is made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from satrap.config import load
from satrap.errors import ConfigError
from satrap.tools.plan.recipe_simulation import Question, simulate_recipe
from satrap.tools.plan.simulate.report import AS_ASKED
from tests.launch.runs import make_recipe
from tests.tools.plan.simulate.runs import calibration

SERVERS = ["cluster.exchange=servers", "cluster.workers=3", "cluster.shards=2", "training.mode=hybrid"]


def test_a_recipe_is_simulated(tmp_path: Path) -> None:
    recipe, said = load(make_recipe(tmp_path), [*SERVERS, "training.staleness=2"]), list[str]()
    question = Question(spread=True, cores=8, hours=10.0, mean_hours=1.0, latency=1e-3)
    found = simulate_recipe(recipe, calibration(), question, notice=said.append)
    one = found.outcomes[AS_ASKED]
    assert (one.setup.workers, one.setup.shards, one.setup.ahead, one.setup.cores) == (3, 2, 2, 8)
    assert one.setup.samples == recipe.sections.data.batch_size
    assert one.setup.values == 4 * one.setup.rows  # the dim of both features
    assert max(one.own) == 2
    assert one.sent > 0
    assert found.survived is not None
    assert found.survived.deaths > 0
    assert not any("other programs" in line for line in said)


def test_a_disturbed_calibration_is_told(tmp_path: Path) -> None:
    made, said = calibration(), list[str]()
    busy = [replace(r, measured=replace(r.measured, busy=2.5)) for r in made.runs]
    simulate_recipe(load(make_recipe(tmp_path)), replace(made, runs=busy), notice=said.append)
    assert any("other programs used" in line for line in said)


def test_what_is_not_simulated_is_refused(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path), [*SERVERS, "cluster.loaders=1"])
    with pytest.raises(ConfigError, match="simulation does not support"):
        simulate_recipe(recipe, calibration())
