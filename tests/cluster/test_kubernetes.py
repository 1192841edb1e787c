"""The manifests of `satrap deploy kubernetes`, with their pods as processes: they train to the end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from satrap import launch
from satrap.config import load
from satrap.rpc import create_key
from tests.cli.command import satrap as command
from tests.cluster.machines import Machines
from tests.cluster.pods import Cluster, machine_code
from tests.cluster.runs import PATIENCE, eventually
from tests.launch.runs import frame, make_recipe
from tests.support.snapshots import saved

pytestmark = pytest.mark.cluster
SETTINGS = ["embedding.memory=64MiB", "checkpoint.every_steps=5", "training.mode=sync"]
EXACT = ["cluster.wire.forward=float32", "cluster.wire.backward=float32", "training.threads=1"]


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """An empty folder, if this system lets us make pods."""
    try:
        with Machines(1, "1gbit") as machines:
            mount = "mount --make-rprivate / && mount -t tmpfs none /srv"
            subprocess.run([*machines.command(0), "unshare", "-m", "sh", "-c", mount], check=True)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"no namespaces: {error}")
    return tmp_path


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return machine_code(tmp_path_factory.mktemp("code"))


def manifests(recipe: Path, settings: list[str], *options: str) -> list[dict[str, Any]]:
    """What the command prints, parsed."""
    sets = [word for one in settings for word in ("--set", one)]
    answer = command("deploy", "kubernetes", recipe, *sets, "--data-claim", "books", "--shared", *options)
    assert answer.code == 0, answer.err
    return list(YAML(typ="safe", pure=True).load_all(answer.out))


def finished(cluster: Cluster, job: str) -> int:
    """The exit code of the job's pod."""
    process = cluster.pods[job].process
    assert process is not None
    return process.wait(PATIENCE)


@pytest.mark.slow
def test_pods_train_what_one_process_trains(room: Path, code: Path) -> None:
    data = room / "data"
    recipe = make_recipe(data, rows=frame(4000))
    servers = [*SETTINGS, *EXACT, "cluster.exchange=servers", "cluster.shards=2"]
    found = manifests(recipe, servers)
    create_key(room / "key")
    with Cluster(room, found, claims={"books": data}, key=room / "key", code=code) as cluster:
        shards = [pod for name, pod in cluster.pods.items() if "shard" in name]
        assert eventually(lambda: all(pod.probe("readinessProbe") == 200 for pod in shards))
        assert finished(cluster, "clicks-train") == 0, cluster.log("clicks-train")
        assert all(pod.probe("livenessProbe") == 200 for pod in shards), "they outlive the job"
        assert all(0.01 < pod.used < 0.5 for pod in shards), [pod.used for pod in shards]  # few rows here
    launch.train(load(recipe, [*SETTINGS, *EXACT]), str(room / "here"))
    run = room / "clicks-run" / "clicks"
    assert saved(run) == saved(room / "here")
    metrics = [json.loads((path / "metrics.json").read_text()) for path in (run, room / "here")]
    assert metrics[0]["test"] == metrics[1]["test"]
    assert metrics[0]["validation"] == metrics[1]["validation"]
    assert "warning" not in cluster.log("clicks-train")


@pytest.mark.parametrize("durability", ["journal", pytest.param("snapshot", marks=pytest.mark.slow)])
def test_pods_that_are_killed_come_back_and_lose_nothing(room: Path, code: Path, durability: str) -> None:
    data = room / "data"
    recipe = make_recipe(data, rows=frame(4000))
    settings = [*SETTINGS, *EXACT, "training.epochs=20", "training.patience=null"]
    servers = [*settings, "cluster.exchange=servers", "cluster.shards=2"]
    found = manifests(recipe, [*servers, f"checkpoint.durability={durability}"])
    create_key(room / "key")
    run = room / "clicks-run" / "clicks"

    def newest() -> str:
        """The newest snapshot."""
        return max(
            (one.parent.name for one in (run / "checkpoints").glob("step-*/manifest.json")), default=""
        )

    with Cluster(room, found, claims={"books": data}, key=room / "key", code=code) as cluster:
        train, shard = cluster.pods["clicks-train"], cluster.pods["clicks-shard-1"]
        assert train.process is not None
        assert shard.process is not None
        assert eventually(newest), cluster.log(train.name)
        shard.process.kill()
        shard.process.wait()
        cluster.start(shard.name)  # as a StatefulSet does
        signs = {"journal": (shard, "recovering from"), "snapshot": (train, "restart from the snapshot")}
        pod, sign = signs[durability]
        assert eventually(lambda: sign in cluster.log(pod.name)), cluster.log(train.name)
        before = newest()
        assert eventually(lambda: newest() > before), cluster.log(train.name)  # it goes on
        train.process.terminate()  # as the drain of a node does
        assert train.process.wait(PATIENCE) == 1, "it is not complete"
        assert "its state is saved" in cluster.log(train.name)
        cluster.start(train.name)  # as a Job does
        train.process.kill()
        train.process.wait()
        cluster.start(train.name)
        assert finished(cluster, train.name) == 0, cluster.log(train.name)
    launch.train(load(recipe, settings), str(room / "here"))
    assert saved(run) == saved(room / "here")
