"""Runs whose optimizer is on a disk are those in memory, also over a mesh and after a worker was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from satrap.errors import ConfigError
from tests.launch.runs import frame, make_recipe
from tests.launch.test_cluster import saved
from tests.launch.test_collective import COLLECTIVE, KillWorker

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("sharded", ["false", "true"])
def test_a_run_with_its_optimizer_on_a_disk_has_the_bytes_of_one_in_memory(
    tmp_path: Path, sharded: str
) -> None:
    path = make_recipe(tmp_path, rows=frame(1501))
    settings = [*COLLECTIVE, "training.mode=sync", "cluster.workers=2", "checkpoint.every_steps=5"]
    settings += [f"dense.sharded={sharded}"]
    plain = launch.train(load(path, settings), str(tmp_path / "plain"))
    killer = KillWorker()
    (tmp_path / "disk").mkdir()
    away = [*settings, f"dense.offload={{optimizer: disk, folder: {tmp_path / 'disk'}}}"]
    outcome = launch.train(load(path, away), str(tmp_path / "run"), observers=[killer])
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["restarts"] == 1
    assert outcome.test == plain.test
    assert saved(tmp_path / "run") == saved(tmp_path / "plain")
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_folder_that_is_not_there_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, rows=frame(301))
    recipe = load(path, [f"dense.offload={{optimizer: disk, folder: {tmp_path / 'none'}}}"])
    with pytest.raises(ConfigError, match="cannot be on this disk: No such file"):
        launch.train(recipe, str(tmp_path / "run"))
