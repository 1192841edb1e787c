"""Workers come and go while a run on Ray trains; what it learns does not depend on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from tests.cli.command import satrap
from tests.cluster.runs import eventually
from tests.cluster.test_moves import Run
from tests.cluster.test_workers import ALIKE, SERVERS, TEXT, WIRE, asked
from tests.launch.runs import frame, make_recipe
from tests.launchers.ray_nodes import Nodes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def on(nodes: Nodes) -> list[str]:
    return ["cluster.launcher=ray", f"cluster.address={nodes.cluster.address}"]


def kinds(nodes: Nodes) -> list[str]:
    return sorted(role.kind for role in nodes.roles())


def reserved(nodes: Nodes, count: int) -> bool:
    """Whether so many processors are, once Ray says so."""
    ray = nodes.ray
    return eventually(
        lambda: ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0) == count, 30
    )


def test_one_two_and_one_worker_take_the_steps_of_one(nodes: Nodes, tmp_path: Path) -> None:
    rows = frame(60_000)
    same = [*ALIKE, "data.shuffle=false", *SERVERS, *WIRE]
    with Run(tmp_path, *on(nodes), *same, base=[], text=TEXT, rows=rows) as run:
        steps = []
        for number in (2, 1):
            answer = asked(run, number)
            assert (answer["before"], answer["workers"]) == (3 - number, number)
            assert kinds(nodes) == ["shard"] * 2 + ["worker"] * number
            assert reserved(nodes, 2 + number)
            steps.append(answer["step"])
        answer = satrap("workers", run.folder, 20)
        assert "has no room now for the processes of the run" in answer.err or "too small" in answer.err
        assert "worker: " in answer.err
        run.ended()
    assert 0 < steps[0] < steps[1] < 3 * 480
    here = launch.train(load(make_recipe(tmp_path, TEXT, rows), same), str(tmp_path / "here"))
    found = json.loads((run.folder / "metrics.json").read_text())
    assert found["steps"] == here.result.steps == 3 * 480
    for name in ("auc", "logloss"):
        assert found["test"][name] == pytest.approx(here.test[name], rel=1e-4)
        assert found["validation"][name] == pytest.approx(here.result.history[-1][name], rel=1e-4)
    assert nodes.free() == nodes.ray.cluster_resources()["CPU"]
