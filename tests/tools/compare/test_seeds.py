"""Runs with several seeds: where they are, and what they have in common."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest

from satrap.config import load
from satrap.errors import ConfigError
from satrap.launch.folder.run_folder import RunFolder
from satrap.tools.compare.seeds import mean_and_spread, runs_of, seed_folders
from tests.launch.runs import frame, make_recipe


def test_seeds_follow_that_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load(make_recipe(tmp_path, rows=frame(10)), ["training.seed=7"])
    folders = seed_folders(recipe, None, 2)
    assert list(folders) == ["runs/clicks-1/seed-7", "runs/clicks-1/seed-8"]
    assert [of.sections.training.seed for of in folders.values()] == [7, 8]
    Path("runs/clicks-1").mkdir(parents=True)
    assert next(iter(seed_folders(recipe, None, 2))) == "runs/clicks-2/seed-7"
    assert list(seed_folders(recipe, "out", 2)) == ["out/seed-7", "out/seed-8"]


def test_a_folder_with_runs_is_not_used_again(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, rows=frame(10)))
    RunFolder.claim(recipe, tmp_path / "seeds/seed-1")
    RunFolder.claim(recipe, tmp_path / "run")
    for name in ("seeds", "run"):
        with pytest.raises(ConfigError, match="already holds a run"):
            seed_folders(recipe, str(tmp_path / name), 2)


def test_runs_are_found_by_their_seeds(tmp_path: Path) -> None:
    recipe = load(make_recipe(tmp_path, rows=frame(10)))
    for folder, of_seed in seed_folders(recipe, str(tmp_path / "out"), 12).items():
        RunFolder.claim(of_seed, folder)
    assert list(runs_of(str(tmp_path / "out"))) == list(range(1, 13))
    assert list(runs_of(str(tmp_path / "out"), 3)) == [1, 2, 3]
    assert list(runs_of(str(tmp_path / "out/seed-12"))) == [12]
    with pytest.raises(ConfigError, match="has 12 seeds, not 13"):
        runs_of(str(tmp_path / "out"), 13)
    with pytest.raises(ConfigError, match="not a run folder"):
        runs_of(str(tmp_path))


def test_mean_and_spread_are_of_the_metrics_that_all_have() -> None:
    found = mean_and_spread([{"auc": 0.1, "ne": 1.0}, {"auc": 0.3}, {"auc": 0.2, "ne": 2.0}])
    assert found == {"auc": pytest.approx((0.2, statistics.stdev([0.1, 0.3, 0.2])))}
    [(mean, spread)] = mean_and_spread([{"auc": 0.5}]).values()
    assert mean == 0.5
    assert math.isnan(spread)
