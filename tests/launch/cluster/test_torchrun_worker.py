"""What a recipe may not ask of workers that `torchrun` has started; runs are in tests/cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from satrap.errors import ConfigError
from satrap.launch.cluster.torchrun_worker import has_begun, speaks
from tests.launch.runs import make_recipe


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of rank 1 of two."""
    variables = {"WORLD_SIZE": 2, "RANK": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    return monkeypatch


@pytest.mark.parametrize(
    ("sets", "match"),
    [
        ([], "cluster.exchange cannot be combined with torchrun"),
        (
            ["cluster.exchange=servers"],
            "cluster.exchange needs cluster.addresses\n.*\n.*\n.*satrap shard",
        ),
        (["cluster.exchange=collective", "cluster.workers=4"], "torchrun has started 2 processes"),
        (
            ["cluster.exchange=collective", "cluster.loaders=1"],
            "loaders cannot be combined with torchrun",
        ),
        (
            ["cluster.exchange=servers", "cluster.addresses=['127.0.0.1:1']", "cluster.embedding_workers=1"],
            "embedding_workers cannot be combined with torchrun",
        ),
    ],
)
def test_what_nobody_starts_is_refused_before_the_others_are_awaited(
    tmp_path: Path, started: pytest.MonkeyPatch, sets: list[str], match: str
) -> None:
    recipe = load(make_recipe(tmp_path), sets)
    with pytest.raises(ConfigError, match=match):
        launch.train(recipe, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_not_there_is_refused(tmp_path: Path, started: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="nothing to resume"):
        launch.train(None, str(tmp_path / "run"), resume=True)


def test_one_worker_speaks(tmp_path: Path, started: pytest.MonkeyPatch) -> None:
    recipe = load(make_recipe(tmp_path), ["cluster.exchange=collective"])
    assert not speaks(recipe)
    started.setenv("RANK", "0")
    assert speaks(recipe)
    started.setenv("RANK", "1")
    assert speaks(load(make_recipe(tmp_path), ["cluster.exchange=collective", "cluster.launcher=ray"]))
    started.delenv("WORLD_SIZE")
    assert speaks(recipe)


def test_only_rank_0_removes_what_a_run_without_snapshots_has_left(
    tmp_path: Path, started: pytest.MonkeyPatch
) -> None:
    recipe = load(make_recipe(tmp_path), ["cluster.exchange=collective"])
    left = tmp_path / "run" / "recipe.yaml"
    left.parent.mkdir()
    left.write_text((tmp_path / "clicks.yaml").read_text())
    assert has_begun(recipe, str(left.parent)) is False
    assert left.exists()
    started.setenv("RANK", "0")
    assert has_begun(recipe, str(left.parent)) is False
    assert not left.exists()
