"""The list for Prometheus says where every process of a run is, and what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from satrap import launch
from satrap.config import load
from satrap.launch.folder.prometheus_targets import Targets
from satrap.launch.folder.run_folder import RunFolder
from satrap.runtime.events import MetricsServed, Ready
from satrap.train import Observer, Progress
from tests.launch.runs import make_recipe
from tests.support.scraping import scrape


def test_each_process_is_a_target_and_one_that_comes_back_takes_its_place(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    targets = Targets(folder)
    assert not folder.targets_file.exists()
    targets.heard("shard 0", Ready("127.0.0.1:5000"))
    assert not folder.targets_file.exists()
    targets.heard("shard 0", MetricsServed("127.0.0.1:9100"))
    targets.heard("embedding worker 12", MetricsServed("[::1]:9101"))
    targets.heard("shard 0", MetricsServed("10.0.0.7:9102"))
    run = tmp_path.name
    assert json.loads(folder.targets_file.read_text()) == [
        {
            "targets": ["10.0.0.7:9102"],
            "labels": {"run": run, "role": "shard", "number": "0", "instance": "shard-0"},
        },
        {
            "targets": ["[::1]:9101"],
            "labels": {
                "run": run,
                "role": "embedding-worker",
                "number": "12",
                "instance": "embedding-worker-12",
            },
        },
    ]
    targets.close()
    assert not folder.targets_file.exists()


def test_workers_that_will_not_come_back_are_no_targets(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    targets = Targets(folder)
    for number, name in enumerate(["shard 2", "worker 0", "worker 1", "worker 2", "embedding worker 3"]):
        targets.heard(name, MetricsServed(f"127.0.0.1:910{number}"))
    targets.keep_workers(2)
    known = [one["labels"]["instance"] for one in json.loads(folder.targets_file.read_text())]
    assert known == ["shard-2", "worker-0", "worker-1", "embedding-worker-3"]


def test_a_shard_that_has_left_is_no_target(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    targets = Targets(folder)
    for number in range(2):
        targets.heard(f"shard {number}", MetricsServed(f"127.0.0.1:910{number}"))
    targets.remove(["shard 1", "shard 7"])
    known = [one["labels"]["instance"] for one in json.loads(folder.targets_file.read_text())]
    assert known == ["shard-0"]


def test_what_a_killed_run_has_left_is_removed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.targets_file.write_text("[]")
    Targets(folder)
    assert not folder.targets_file.exists()


class Scrape(Observer):
    """Reads all targets of a run at each evaluation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: dict[str, dict[str, float]] = {}

    def evaluated(self, metrics: Any, progress: Progress) -> None:
        for target in json.loads((self.folder / "targets.json").read_text()):
            assert target["labels"]["run"] == self.folder.name
            self.found[target["labels"]["instance"]] = scrape(*target["targets"])


@pytest.mark.parametrize(
    ("settings", "roles"),
    [
        ([], {"worker-0": "0 worker"}),
        pytest.param(
            ["cluster.exchange=servers", "cluster.shards=2", "cluster.loaders=1"],
            {"shard-0": "0 shard", "shard-1": "1 shard", "loader-0": " loader", "worker-0": "0 worker"},
            marks=pytest.mark.cluster,
        ),
        pytest.param(
            ["cluster.exchange=servers", "cluster.workers=2", "cluster.embedding_workers=1"],
            {
                "shard-0": "0 shard",
                "embedding-worker-0": " embedding-worker",
                "worker-0": "0 worker",
                "worker-1": "1 worker",
            },
            marks=pytest.mark.cluster,
        ),
    ],
)
def test_a_run_lists_all_its_processes_while_it_lives(
    tmp_path: Path, settings: list[str], roles: dict[str, str]
) -> None:
    path, folder = make_recipe(tmp_path), tmp_path / "run"
    seen = Scrape(folder)
    launch.train(load(path, ["cluster.metrics_port=0", *settings]), str(folder), observers=[seen])
    assert set(seen.found) == set(roles)
    for name, role in roles.items():
        assert seen.found[name][f"satrap_role_info {role}"] == 1
    assert not (folder / "targets.json").exists()


def test_without_endpoints_there_is_no_list(tmp_path: Path) -> None:
    path, seen = make_recipe(tmp_path), Scrape(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        launch.train(load(path), str(tmp_path / "run"), observers=[seen])
