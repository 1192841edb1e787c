"""Runs with an optimizer, or all, on a disk are those in memory, also over a mesh and after a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from satrap.errors import ConfigError
from tests.launch.runs import frame, make_recipe
from tests.support.clusters import COLLECTIVE, Kill
from tests.support.containers import container
from tests.support.snapshots import saved

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("sharded", "weights"),
    [pytest.param("false", "false", marks=pytest.mark.slow), ("true", "false"), ("false", "true")],
)
def test_a_run_on_a_disk_has_the_bytes_of_one_in_memory(tmp_path: Path, sharded: str, weights: str) -> None:
    path = make_recipe(tmp_path, rows=frame(1501))
    settings = [*COLLECTIVE, "training.mode=sync", "cluster.workers=2", "checkpoint.every_steps=5"]
    settings += [f"dense.sharded={sharded}"]
    plain = launch.train(load(path, settings), str(tmp_path / "plain"))
    killer = Kill()
    (tmp_path / "disk").mkdir()
    offload = f"{{optimizer: disk, folder: {tmp_path / 'disk'}, weights: {weights}}}"
    away = [*settings, f"dense.offload={offload}"]
    outcome = launch.train(load(path, away), str(tmp_path / "run"), observers=[killer])
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["restarts"] == 1
    assert outcome.test == plain.test
    assert saved(tmp_path / "run") == saved(tmp_path / "plain")
    assert list((tmp_path / "disk").iterdir()) == []


PROGRAM = """
import json, sys
from satrap import launch
from satrap.config import load
from tests.launch.folder.test_resume import KillAt, KilledError

group, path, small, run, settings = sys.argv[1:]
launch.train(load(path), small)  # what a first run loads counts for nothing
open(group, "w").write("0")
recipe = load(path, json.loads(settings))
try:
    launch.train(recipe, run, observers=[KillAt(20)])
except KilledError:
    launch.train(recipe, run, resume=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("weights", [True, False])
def test_a_network_without_room_is_trained_and_saved_and_goes_on(tmp_path: Path, weights: bool) -> None:
    """38 MB of weights, as many of gradients, and 76 MB of Adam's state, in a container of 60 MB.

    It writes snapshots, goes on from one, and saves its best weights and its model.
    """
    path = make_recipe(tmp_path, rows=frame(801))
    wide = [f"model.hidden={[1024] * 10}", "training.patience=5", "data.batch_size=50", "training.threads=1"]
    wide += ["checkpoint.every_steps=8"]
    offload = f"{{optimizer: disk, folder: {tmp_path}, weights: {json.dumps(weights)}}}"
    with container(60_000_000) as group:
        command = [
            sys.executable,
            "-c",
            PROGRAM,
            group,
            str(path),
            str(tmp_path / "s"),
            str(tmp_path / "run"),
        ]
        command += [json.dumps([*wide, f"dense.offload={offload}"])]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if not weights:
        assert run.returncode == -signal.SIGKILL
        return
    assert run.returncode == 0, run.stderr
    plain = launch.train(load(path, wide), str(tmp_path / "plain"))
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["test"] == plain.test
    assert saved(tmp_path / "run") == saved(tmp_path / "plain")


def test_a_folder_that_is_not_there_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, rows=frame(301))
    recipe = load(path, [f"dense.offload={{optimizer: disk, folder: {tmp_path / 'none'}}}"])
    with pytest.raises(ConfigError, match="cannot offload to this disk: No such file"):
        launch.train(recipe, str(tmp_path / "run"))
