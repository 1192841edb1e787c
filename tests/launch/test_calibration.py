from __future__ import annotations

from pathlib import Path

import pytest

from satrap.config import load
from satrap.launch.calibration import Case, cases
from tests.launch.runs import make_recipe


def test_a_case_changes_processes_and_sizes(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    own = load(recipe)
    case = Case("servers", "hybrid", 3, workers=2, shards=2, batch=0.5, dim=2.0)
    found = load(recipe, case.overrides(recipe, ["training.mode=sync", "training.seed=7"]))
    sections = found.sections
    assert (sections.cluster.workers, sections.cluster.shards, sections.training.seed) == (2, 2, 7)
    assert (sections.training.mode, sections.training.staleness) == ("hybrid", 3)
    assert sections.data.batch_size == own.sections.data.batch_size // 2
    dims = {name: 2 * feature.dim for name, feature in own.schema().categorical.items()}
    assert {name: feature.dim for name, feature in found.schema().categorical.items()} == dims


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_a_calibration_is_not_of_the_recipe_itself(cores: int) -> None:
    wanted = cases(cores)
    assert len(set(wanted)) >= len(wanted) - 1  # with one core, both runs in one process are the same
    assert all((case.batch, case.dim) != (1.0, 1.0) for case in wanted if case.exchange != "local")
    assert {case.copies for case in wanted} == {1, cores}
