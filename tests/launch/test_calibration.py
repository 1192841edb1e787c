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


def test_all_cases() -> None:
    """(exchange, mode, ahead, workers, shards, factor of the batch size, of the dims, copies)."""
    found = [
        (one.exchange, one.mode, one.ahead, one.workers, one.shards, one.batch, one.dim, one.copies)
        for one in cases(4)
    ]
    assert found == [
        ("local", "sync", 0, 1, 1, 1.0, 1.0, 1),
        ("local", "sync", 0, 1, 1, 1.0, 1.0, 4),
        ("servers", "hybrid", 2, 1, 1, 0.5, 0.5, 1),
        ("servers", "hybrid", 2, 1, 1, 0.5, 2.0, 1),
        ("servers", "hybrid", 2, 1, 1, 2.0, 0.5, 1),
        ("servers", "hybrid", 2, 1, 1, 2.0, 2.0, 1),
        ("servers", "sync", 0, 1, 1, 0.5, 2.0, 1),
        ("servers", "sync", 0, 1, 1, 2.0, 0.5, 1),
        ("servers", "sync", 0, 2, 2, 0.5, 0.5, 1),
        ("servers", "sync", 0, 2, 2, 2.0, 2.0, 1),
        ("servers", "hybrid", 2, 2, 1, 0.5, 2.0, 1),
        ("collective", "sync", 0, 2, 1, 0.5, 0.5, 1),
        ("collective", "sync", 0, 2, 1, 2.0, 0.5, 1),
        ("collective", "sync", 0, 2, 1, 0.5, 2.0, 1),
    ]
    assert [one.copies for one in cases(0)[:2]] == [1, 1]
    assert {one.delay for one in cases(4)} == {0.0}


def test_all_keys_of_a_case(tmp_path: Path) -> None:
    case = Case("servers", batch=0.001, dim=0.01)
    found = dict(one.split("=", 1) for one in case.overrides(make_recipe(tmp_path), ["training.seed=7"]))
    assert found == {
        "training.seed": "7",
        "cluster.exchange": "servers",
        "cluster.workers": "1",
        "cluster.shards": "1",
        "cluster.embedding_workers": "0",
        "cluster.loaders": "0",
        "training.mode": "sync",
        "training.staleness": "0",
        "training.staleness_warmup": "0",
        "training.lookahead": "0",
        "data.batch_size": "1",
        "data.shuffle": "false",
        "data.balance": "null",
        "data.global_batch": "false",
        "features.user.dim": "1",
        "features.item.dim": "1",
    }
