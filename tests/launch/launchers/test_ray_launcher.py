"""Runs on a Ray cluster of several nodes, all on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from satrap import launch
from satrap.checkpoint import Series
from satrap.config import load
from satrap.config.keys.cluster import ClusterKeys
from satrap.errors import ConfigError
from tests.cli.command import SATRAP, process
from tests.cluster.runs import alive, eventually
from tests.launch.launchers.ray_nodes import Nodes, launcher
from tests.launch.runs import RECIPE, frame, make_recipe
from tests.support.snapshots import saved

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SYNC = RECIPE.replace("mode: hybrid, staleness: 2", "mode: sync")
ENDLESS = RECIPE.replace("epochs: 2", "epochs: 100000, patience: null")
SERVERS = ["cluster.exchange=servers", "cluster.shards=2", "cluster.workers=2"]


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
    assert not any("warning" in line for line in said)
    assert nodes.free() == 8


def test_a_cluster_that_is_too_small_is_told_role_by_role(nodes: Nodes) -> None:
    resources = {"shard": {"cpu": 3.0}, "worker": {"gpu": 1.0}}
    keys = {"exchange": "servers", "launcher": "ray", "shards": 5, "workers": 2, "resources": resources}
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        launcher(ClusterKeys.model_validate(keys), [])
    assert time.monotonic() - began < 3
    assert str(caught.value).splitlines() == [
        "the Ray cluster is too small for the processes of the run",
        "  where: shard: 2 of 5 fit, each needs 3 CPU; worker: 0 of 2 fit, each needs 1 CPU and 1 GPU",
        "  why it matters: the cluster's 2 nodes have 8 CPU and 0 GPU; 8 CPU and 0 GPU are free",
        "  what to do: lower cluster.resources, add nodes, or set cluster.wait to wait in the queue",
    ]


def test_a_cluster_that_is_taken_is_waited_for_if_asked(nodes: Nodes) -> None:
    most = ClusterKeys(exchange="collective", launcher="ray", workers=6)
    with closing(launcher(most, [])):
        with pytest.raises(ConfigError) as caught:
            launcher(most, [])
        assert caught.value.what == "the Ray cluster has too few free resources for the processes of the run"
        assert caught.value.where == "worker: 2 of 6 fit, each needs 1 CPU"
        assert "2 CPU are free" in caught.value.why
    assert nodes.free() == 8
    first, said = launcher(most, []), list[str]()
    release = nodes.later(2, first.close)
    with closing(launcher(most.model_copy(update={"wait": 60.0}), said)):
        pass
    release.join()
    [line] = said
    assert line.endswith("(worker: 2 of 6 fit, each needs 1 CPU); waiting up to 60 s")
    assert nodes.free() == 8  # the next test counts on it


def test_more_roles_get_room_of_their_own_and_give_it_back(nodes: Nodes) -> None:
    def workers(count: int) -> ClusterKeys:
        return ClusterKeys(exchange="collective", launcher="ray", workers=count)

    def free() -> float:
        return float(nodes.ray.available_resources().get("CPU", 0.0))

    with closing(launcher(workers(5), [])) as made:
        made.reserve(workers(7), [])
        assert eventually(lambda: free() == 1, 20)
        with pytest.raises(ConfigError, match=r"has too few free .*\n.*worker: ") as caught:
            made.reserve(workers(10), [])
        assert caught.value.fix == "add nodes, or request fewer processes"
        assert eventually(lambda: free() == 1, 20)
        made.release(workers(6), [])
        assert eventually(lambda: free() == 2, 20)
        made.release(workers(2), [])  # those of the beginning share a group
        assert eventually(lambda: free() == 3, 20)
        made.reserve(workers(6), [])
        assert eventually(lambda: free() == 2, 20)
    assert nodes.free() == 8


NOWHERE = """
from satrap.config.keys.cluster import ClusterKeys
from satrap.errors import ConfigError
from satrap.launch.launchers.ray_launcher import RayLauncher
keys = ClusterKeys(exchange="servers", launcher="ray", address="127.0.0.1:9")
try:
    RayLauncher(keys, run="a", folder="/", needs=(), notice=print)
except ConfigError as error:
    print(error)
"""


def test_an_address_where_nobody_answers_is_an_error_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", NOWHERE], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "cannot reach the Ray cluster at 127.0.0.1:9",
        "  where: cluster.address",
        "  why it matters: [Errno 111] Connection refused",
        "  what to do: check the address, and RAY_AUTH_TOKEN_PATH if the cluster requires a token",
    ]


def test_a_run_without_an_address_starts_a_ray_of_its_own_and_ends_it(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, SYNC)
    settings = [*SERVERS, "cluster.launcher=ray", "cluster.resources.shard.custom={disk: 1}"]
    options = [word for setting in settings for word in ("--set", setting)]
    done = process("train", path, "--output", tmp_path / "run", *options)
    assert done.code == 0, done.err
    assert "warning" not in done.err
    launch.train(load(path, SERVERS), str(tmp_path / "here"))
    assert saved(tmp_path / "run") == saved(tmp_path / "here")


@pytest.fixture
def journey(nodes: Nodes, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run without end, started from the command line, after its first evaluation."""
    settings = [*SERVERS, "cluster.launcher=ray", f"cluster.address={nodes.cluster.address}"]
    settings += ["checkpoint.durability=journal", "cluster.deadline=120"]
    options = [word for setting in settings for word in ("--set", setting)]
    command = [SATRAP, "train", make_recipe(tmp_path, ENDLESS), "--output", tmp_path / "run", *options]
    with (tmp_path / "log").open("w") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, text=True)
    try:
        assert eventually(
            lambda: (tmp_path / "run" / "metrics.jsonl").exists() or started.poll() is not None, 120
        )
        assert started.poll() is None, (tmp_path / "log").read_text()
        yield started
    finally:
        started.kill()
        started.wait()
        assert eventually(lambda: nodes.roles() == [], 30)


def test_a_shard_whose_agent_died_comes_back_and_a_signal_saves(
    nodes: Nodes, tmp_path: Path, journey: subprocess.Popen[str]
) -> None:
    before = [role for role in nodes.roles() if role.kind == "shard"]
    assert len(before) == 2
    os.kill(before[0].agent, signal.SIGKILL)
    log = tmp_path / "log"
    assert eventually(lambda: "training waits for it (restart 1 of 3)" in log.read_text())
    assert eventually(lambda: "] lost; restarting from " in log.read_text())
    lines = len((tmp_path / "run" / "metrics.jsonl").read_text())
    assert eventually(lambda: len((tmp_path / "run" / "metrics.jsonl").read_text()) > lines)
    after = [role.pid for role in nodes.roles() if role.kind == "shard"]
    assert not alive(before[0].pid)
    assert before[1].pid in after
    journey.send_signal(signal.SIGTERM)
    assert journey.wait(120) == 0, log.read_text()
    assert "its state is saved" in log.read_text()
    assert nodes.free() == nodes.ray.cluster_resources()["CPU"]


def test_nothing_outlives_a_killed_driver(nodes: Nodes, journey: subprocess.Popen[str]) -> None:
    left = [role.pid for role in nodes.roles()]  # by number: of an orphan nobody knows the agent
    assert len(left) == 4
    journey.kill()
    assert eventually(lambda: not any(map(alive, left)), 15)
    assert nodes.free() == nodes.ray.cluster_resources()["CPU"]


def test_a_dead_node_costs_the_steps_since_the_newest_snapshot(nodes: Nodes, tmp_path: Path) -> None:
    """Its roles start again on the nodes that are left, and the result is that of an undisturbed run."""
    text = SYNC.replace("epochs: 2", "epochs: 12, patience: null") + "checkpoint: {every_steps: 11}\n"
    path, extra = make_recipe(tmp_path, text, frame(8000)), nodes.add(4)
    assert extra is not None
    settings = [*SERVERS, "cluster.wire.forward=float32", "cluster.wire.backward=float32"]
    expected = launch.train(load(path, settings), str(tmp_path / "expected"))
    series, said = Series(str(tmp_path / "run" / "checkpoints")), list[str]()

    def kill_a_node_with_a_shard() -> None:
        assert eventually(lambda: (series.latest() or 0) > 0)
        head = nodes.cluster.head_node
        nodes.remove(next(r.node for r in nodes.roles() if r.kind == "shard" and r.node is not head))

    killer = nodes.later(0, kill_a_node_with_a_shard)
    outcome = launch.train(
        load(path, [*settings, "cluster.launcher=ray"]), str(tmp_path / "run"), notice=said.append
    )
    killer.join()
    nodes.add(4)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["restarts"] >= 1, said
    assert saved(tmp_path / "run") == saved(tmp_path / "expected")
    assert outcome.test == expected.test
    assert any("all workers restart from the snapshot of step" in line for line in said)
