"""What a detached run is asked to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from satrap.config import load
from satrap.errors import ConfigError
from satrap.launch.cluster import detached
from satrap.launch.launchers import ray_controller
from tests.cli.command import satrap
from tests.launch.runs import make_recipe


def test_the_command_begins_or_continues_the_run_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(ray_controller, "detach", lambda *arguments: asked.append(arguments))
    path = make_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    recipe = load("clicks.yaml", ["training.epochs=3"])
    detached.detach(recipe, "run", ["training.epochs=3"])
    [(keys, folder, command)] = asked
    assert keys == recipe.sections.cluster
    assert folder == tmp_path / "run"
    assert command[:4] == ["-u", "-m", "satrap.cli", "train"]
    assert command[4:7] == [str(path), "--set", "training.epochs=3"]
    assert command[7:] == ["--output", str(tmp_path / "run"), "--until-done", "--stop-at-eof"]


@pytest.mark.parametrize("how", ["--detach", "--attach", "--stop"])
def test_only_a_ray_cluster_takes_a_run(tmp_path: Path, how: str) -> None:
    path = make_recipe(tmp_path)
    for setting in ("cluster.launcher=local", "cluster.launcher=ray"):
        words = ["train", path, "--output", tmp_path / "run", how, "--set", "cluster.exchange=servers"]
        done = satrap(*words, "--set", setting)
        done.assert_refused("a run can only be detached on a Ray cluster", "cluster.address")
    with pytest.raises(ConfigError, match="only be detached on a Ray cluster"):
        detached.attach(load(path), str(tmp_path / "run"), print)
    assert "give only one of" in satrap("train", path, "--output", tmp_path / "run", how, "--resume").err
    assert "--output DIR" in satrap("train", path, how).err
