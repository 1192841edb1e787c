"""Runs on a Ray cluster of several nodes, all on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from tests.launch.runs import RECIPE, make_recipe
from tests.launch.test_cluster import saved
from tests.launchers.ray_nodes import Nodes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SYNC = RECIPE.replace("mode: hybrid, staleness: 2", "mode: sync")
SERVERS = ["cluster.exchange=servers", "cluster.shards=2", "cluster.workers=2"]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with Nodes([3, 3]) as started:
        yield started


def test_bytes_are_those_of_processes_of_this_machine(nodes: Nodes, tmp_path: Path) -> None:
    path = make_recipe(tmp_path, SYNC)
    settings = [*SERVERS, "cluster.loaders=1"]
    here = launch.train(load(path, settings), str(tmp_path / "here"))
    said: list[str] = []
    there = launch.train(
        load(path, [*settings, "cluster.launcher=ray"]), str(tmp_path / "there"), notice=said.append
    )
    assert saved(tmp_path / "there") == saved(tmp_path / "here")
    assert there.test == here.test
    assert there.result.history == here.result.history
    for name in ("shard 0", "shard 1"):
        assert any(line.startswith(f"[{name}] satrap shard ready on 127.0.0.1:") for line in said)
