"""Workers and shards come and go while a run on Ray trains; what it learns does not depend on it."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from satrap.config.keys.cluster import ClusterKeys
from tests.cli.command import satrap
from tests.cluster.runs import eventually
from tests.launch.launchers.ray_nodes import Nodes, launcher
from tests.launch.runs import frame, make_recipe
from tests.support.asked_runs import ALIKE, SERVERS, TEXT, WIRE, Run, asked, targets
from tools_dev.chaos.digests import differences, digest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def on(nodes: Nodes) -> list[str]:
    return ["cluster.launcher=ray", f"cluster.address={nodes.cluster.address}"]


def kinds(nodes: Nodes) -> list[str]:
    return sorted(role.kind for role in nodes.roles())


def has_shards(nodes: Nodes, count: int) -> bool:
    return kinds(nodes).count("shard") == count


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
        assert "the Ray cluster has too few free resources for the processes of the run" in answer.err
        assert "where: worker: 0 of 1 fit, each needs 1 CPU" in answer.err
        run.ended()
    assert 0 < steps[0] < steps[1] < 3 * 480
    here = launch.train(load(make_recipe(tmp_path, TEXT, rows), same), str(tmp_path / "here"))
    found = json.loads((run.folder / "metrics.json").read_text())
    assert found["steps"] == here.result.steps == 3 * 480
    for name in ("auc", "logloss"):
        assert found["test"][name] == pytest.approx(here.test[name], rel=1e-4)
        assert found["validation"][name] == pytest.approx(here.result.history[-1][name], rel=1e-4)
    assert nodes.free() == nodes.ray.cluster_resources()["CPU"]


def test_two_three_and_two_shards_under_training_give_the_model_of_two(nodes: Nodes, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("moved", "plain")]
    for folder in folders:
        folder.mkdir()
    with Run(folders[0], *on(nodes), "cluster.metrics_port=0") as moved:
        assert moved.training()
        with closing(launcher(ClusterKeys(exchange="collective", launcher="ray", workers=4), [])):
            answer = satrap("shards", "add", moved.folder)
            assert "the Ray cluster has too few free resources for the processes of the run" in answer.err
            assert "where: shard: 0 of 1 fit, each needs 1 CPU" in answer.err
        assert reserved(nodes, 4)
        for command, number, members, room in (
            ("add", [], [0, 1, 2], 5),
            ("drain", [2], [0, 1], 4),
            ("add", [], [0, 1, 2], 5),
            ("drain", [0], [1, 2], 5),  # those of the beginning share a group
        ):
            answer = moved.shards(command, *number)
            assert [one["shard"] for one in answer["shards"]] == members
            assert answer["rows"] > 0
            assert eventually(partial(has_shards, nodes, len(members)))
            assert reserved(nodes, room)
        assert eventually(lambda: targets(moved) == ["shard-1", "shard-2", "worker-0", "worker-1"], 30)
        moved.popen.terminate()
        moved.ended()
    with Run(folders[0], *on(nodes), resume=True) as resumed, Run(folders[1]) as plain:
        assert eventually(lambda: resumed.popen.poll() is not None or kinds(nodes).count("worker") == 2)
        assert reserved(nodes, 4)
        for run in (resumed, plain):
            run.ended()
    ends = [digest(str(run.folder / "model")) for run in (resumed, plain)]
    assert differences(*ends) == []
