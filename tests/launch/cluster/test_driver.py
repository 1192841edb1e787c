"""A run in several processes: the same model as in one, and errors as from one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap import launch
from satrap.config import load
from satrap.errors import ConfigError, DataError, ExchangeError
from satrap.exchange.shard_map import ShardMap
from satrap.launch.cluster.control_requests import MapLog
from satrap.launch.cluster.driver import _ClusterActions
from satrap.launch.cluster.worker import Assignment
from satrap.rpc import create_key
from satrap.train import Observer, Progress
from tests.cli.command import SATRAP
from tests.cluster.runs import children, eventually
from tests.launch.runs import RECIPE, frame, lines_of, make_recipe
from tests.support.clusters import SERVERS
from tests.support.scraping import scrape
from tests.support.snapshots import saved


class Scrape(Observer):
    """Reads the endpoints that a run has named, at each evaluation."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.found: dict[str, dict[str, float]] = {}

    def evaluated(self, metrics: Any, progress: Progress) -> None:
        for line in self.said:
            if " metrics on http://" in line:
                name, _, address = line.partition(" metrics on http://")
                self.found[name] = scrape(address.removesuffix("/metrics"))


@pytest.mark.cluster
def test_a_worker_and_two_shards_leave_the_folder_of_one_process(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    seen = Scrape()
    said = seen.said
    here = launch.train(load(path), str(tmp_path / "here"))
    there = launch.train(
        load(path, [*SERVERS, "cluster.shards=2", "cluster.metrics_port=0"]),
        str(tmp_path / "there"),
        observers=[seen],
        notice=said.append,
    )
    assert saved(tmp_path / "there") == saved(tmp_path / "here")
    assert there.test == here.test
    assert there.result.history == here.result.history
    assert there.result.staleness == here.result.staleness
    metrics = json.loads((tmp_path / "there" / "metrics.json").read_text())
    check_traffic(metrics["traffic"], seen)
    events = [line["event"] for line in lines_of(tmp_path / "there" / "metrics.jsonl")]
    assert events == [line["event"] for line in lines_of(tmp_path / "here" / "metrics.jsonl")]
    for name in ("shard 0", "shard 1"):
        assert any(line.startswith(f"[{name}] satrap shard ready on 127.0.0.1:") for line in said)
    assert launch.evaluate(there.folder) == there.test


def check_traffic(traffic: Any, seen: Scrape) -> None:
    assert traffic["staleness"] == {"own": {"0": 2, "1": 2, "2": 28}, "others": {"0": 32}}
    assert sum(traffic["shard_rows"]) == 50
    assert set(traffic["stage_seconds"]) == {"read", "lookup", "forward", "dense", "push"}
    assert all(0 < busy < 1 for busy in traffic["shard_busy"])
    assert traffic["push_seconds"] > 0
    assert 0 < traffic["distinct_ratio"] < 0.5
    assert set(seen.found) == {"[shard 0] satrap shard", "[shard 1] satrap shard", "worker 0:"}
    worker = seen.found.pop("worker 0:")
    assert worker["satrap_worker_steps_total"] == 32
    assert worker["satrap_worker_staleness_updates_bucket 2.0 own"] == 32
    shards = [shard for _, shard in sorted(seen.found.items())]
    assert [shard["satrap_shard_rows"] for shard in shards] == traffic["shard_rows"]
    assert [shard["satrap_shard_requests_total update"] for shard in shards] == [32, 32]


def test_ray_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError) as caught:
        launch.train(load(make_recipe(tmp_path), [*SERVERS, "cluster.launcher=ray"]), str(tmp_path / "run"))
    assert caught.value.what == "Ray is not installed"
    assert caught.value.where == "cluster.launcher"
    assert "pip install 'satrap[ray]'" in caught.value.fix
    assert not (tmp_path / "run").exists()


@contextmanager
def shards_of_others(key: Path, count: int = 2) -> Iterator[list[str]]:
    """Shards that somebody has started, with a key; yields their addresses."""
    command = [sys.executable, "-m", "satrap.cli", "shard", "--listen", "127.0.0.1:0", "--key", str(key)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        yield [str(process.stdout and process.stdout.readline().split()[4]) for process in started]
    finally:
        for process in started:
            process.terminate()
            process.communicate(timeout=30)
        assert [process.returncode for process in started] == [0] * count


@pytest.mark.cluster
def test_shards_that_run_already_serve_one_run_after_the_other(tmp_path: Path) -> None:
    path, key = make_recipe(tmp_path), tmp_path / "key"
    create_key(key)
    launch.train(load(path), str(tmp_path / "here"))
    with shards_of_others(key) as addresses:
        there = [*SERVERS, f"cluster.addresses=[{', '.join(addresses)}]"]
        for number in range(2):
            said: list[str] = []
            keyed = [*there, f"cluster.key={key}", "cluster.loaders=1"]
            launch.train(load(path, keyed), str(tmp_path / f"run{number}"), notice=said.append)
            assert saved(tmp_path / f"run{number}") == saved(tmp_path / "here")
            assert any(line.endswith(f"1 worker; shards at {', '.join(addresses)}") for line in said)
        create_key(tmp_path / "other")
        for wrong in ([], [f"cluster.key={tmp_path / 'other'}"]):
            with pytest.raises(ExchangeError, match="key"):
                launch.train(load(path, [*there, *wrong]), str(tmp_path / "refused"))


@pytest.mark.cluster
def test_shards_that_outlive_a_killed_launcher_serve_its_resumed_run(tmp_path: Path) -> None:
    path, run = make_recipe(tmp_path), tmp_path / "run"
    create_key(key := tmp_path / "key")
    with shards_of_others(key) as addresses:
        there = [f"cluster.addresses=[{', '.join(addresses)}]", f"cluster.key={key}", "training.epochs=4"]
        settings = [*SERVERS, *there, "training.mode=sync", "checkpoint.every_steps=5"]
        command = [SATRAP, "train", path, "--output", run, "--until-done"]
        command += [word for one in settings for word in ("--set", one)]
        started = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        snapshots = run / "checkpoints"
        assert eventually(lambda: snapshots.exists() and any(snapshots.glob("*/manifest.json")))
        started.kill()
        started.wait()
        assert subprocess.run(command, check=False).returncode == 0
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, f"the run in {run} is complete\n")
    launch.train(load(path, ["training.mode=sync", "training.epochs=4"]), str(tmp_path / "here"))
    assert saved(run) == saved(tmp_path / "here")


@pytest.mark.cluster
@pytest.mark.parametrize("mode", ["sync", "hybrid", "async"])
def test_two_workers_learn_what_one_learns(tmp_path: Path, mode: str) -> None:
    settings = [f"training.mode={mode}", "cluster.workers=2", "cluster.shards=2", "data.batch_size=50"]
    path = make_recipe(tmp_path, rows=frame(6001))
    alone = launch.train(load(path), str(tmp_path / "alone"))
    outcome = launch.train(load(path, [*SERVERS, *settings]), str(tmp_path / "run"))
    assert outcome.result.samples == alone.result.samples == 2 * 4801
    assert outcome.test["samples"] == alone.test["samples"] == 600
    assert outcome.test["auc"] == pytest.approx(alone.test["auc"], abs=0.05)
    assert launch.evaluate(outcome.folder)["auc"] == pytest.approx(outcome.test["auc"], abs=1e-3)


@pytest.mark.cluster
def test_two_workers_learn_numbers_and_classes(tmp_path: Path) -> None:
    rows = frame(6001)
    rows["cost"], rows["color"] = 1000 + 30 * rows["item"], rows["item"] % 3
    labels = "[clicked, {name: cost, kind: regression}, {name: color, kind: multiclass, classes: 3}]"
    path = make_recipe(tmp_path, RECIPE.replace("[clicked]", labels), rows)
    settings = ["training.mode=sync", "data.batch_size=50", "cluster.workers=2", "cluster.shards=2"]
    outcome = launch.train(load(path, [*SERVERS, *settings, "training.epochs=4"]), str(tmp_path / "run"))
    assert outcome.test["cost/samples"] == 600
    assert outcome.test["cost/rmse"] < 100 < rows["cost"].std() / 1.5
    assert outcome.test["color/accuracy"] > 0.9
    assert launch.evaluate(outcome.folder) == pytest.approx(outcome.test, rel=1e-2)


@pytest.mark.cluster
def test_vectors_and_weights_pass_loaders_and_embedding_workers(tmp_path: Path) -> None:
    rows = frame(2000)
    vectors = np.random.default_rng(0).normal(size=(2000, 2)).round(3)
    rows["text"] = [f"{a} {b}" for a, b in vectors]
    rows["tags"] = [f"t{i % 7}:{i % 3}|t{i % 5}" for i in range(2000)]
    features = """features:
  text: {vector: 2, separator: " "}
  tags: {dim: 4, multi: true, separator: "|", weight_separator: ":", max_values: 2, keep: last}
"""
    path = make_recipe(tmp_path, RECIPE.replace("features:\n", features), rows)
    sync = ["training.mode=sync", "training.staleness=0"]
    here = launch.train(load(path, sync), str(tmp_path / "here"))
    loaded = launch.train(load(path, [*SERVERS, *sync, "cluster.loaders=1"]), str(tmp_path / "loaded"))
    assert saved(tmp_path / "loaded") == saved(tmp_path / "here")
    assert loaded.test == here.test
    pooled = [*SERVERS, *sync, "cluster.loaders=1", "cluster.embedding_workers=1"]
    assert launch.train(load(path, pooled), str(tmp_path / "pooled")).test == pytest.approx(
        here.test, rel=1e-3
    )


@pytest.mark.cluster
def test_admission_and_eviction_reach_the_shards(tmp_path: Path) -> None:
    bounds = [
        "embedding.memory=1MiB",
        "embedding.eviction={policy: ttl, ttl: 30}",
        "embedding.admission={min_count: 6, memory: 4096}",
    ]
    path = make_recipe(tmp_path)
    here = launch.train(load(path, bounds), str(tmp_path / "here"))
    there = launch.train(load(path, [*SERVERS, *bounds]), str(tmp_path / "there"))
    free = launch.train(load(path), str(tmp_path / "free"))
    assert saved(tmp_path / "there") == saved(tmp_path / "here") != saved(tmp_path / "free")
    assert there.test == here.test != free.test
    assert launch.evaluate(there.folder) == here.test


@pytest.mark.cluster
def test_with_a_tier_shards_end_as_with_enough_memory(tmp_path: Path) -> None:
    bounds = [
        "embedding.memory=768KiB",
        "embedding.eviction={policy: lru}",
        f"embedding.tier={{path: {tmp_path}, size: 256KiB}}",
    ]
    path = make_recipe(tmp_path)
    launch.train(load(path, [*SERVERS, *bounds]), str(tmp_path / "there"))
    launch.train(load(path), str(tmp_path / "free"))
    assert saved(tmp_path / "there") == saved(tmp_path / "free")


@pytest.mark.cluster
def test_bad_data_in_a_worker_is_the_users_error(tmp_path: Path) -> None:
    """Found only while reading: the error comes from another process, with its place."""
    rows = frame(300).astype({"price": object, "clicked": object})
    rows.loc[250, "clicked"] = "perhaps"
    recipe = load(make_recipe(tmp_path, RECIPE.replace("[log1p, standardize]", "log1p"), rows), SERVERS)
    with pytest.raises(DataError, match="perhaps") as caught:
        launch.train(recipe, str(tmp_path / "run"))
    assert "rows.csv" in caught.value.where
    assert not (tmp_path / "run").exists()


def test_what_is_wrong_with_the_recipe_is_found_before_any_process_starts(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    with pytest.raises(ConfigError, match="nonsense") as caught:
        launch.train(load(path, [*SERVERS, "model.name=nonsense"]), str(tmp_path / "run"))
    assert caught.value.where == "--set model.name"
    assert not (tmp_path / "run").exists()


@pytest.mark.cluster
@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.slow), "hybrid"])
def test_loaders_change_nothing_but_who_reads(tmp_path: Path, mode: str) -> None:
    """With two workers in sync the model is the same to the bit; in hybrid the samples are."""
    path = make_recipe(tmp_path, rows=frame(1501))
    settings = [*SERVERS, f"training.mode={mode}", "cluster.workers=2", "cluster.shards=2"]
    runs = {}
    for loaders in (0, 1, 2):
        recipe = load(path, [*settings, f"cluster.loaders={loaders}"])
        runs[loaders] = launch.train(recipe, str(tmp_path / f"run{loaders}"))
    for loaders in (1, 2):
        assert runs[loaders].result.samples == runs[0].result.samples == 2 * 1201
        assert runs[loaders].test["samples"] == runs[0].test["samples"] == 150
        if mode == "sync":
            assert saved(tmp_path / f"run{loaders}") == saved(tmp_path / "run0")
            assert runs[loaders].test == runs[0].test


@pytest.mark.cluster
@pytest.mark.slow
def test_another_number_of_loaders_goes_on_in_the_middle_of_a_pass(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, rows=frame(1501))
    settings = [*SERVERS, "training.mode=sync", "cluster.workers=2", "checkpoint.every_steps=1"]
    whole = launch.train(load(path, settings), str(tmp_path / "whole"))
    for loaders, steps in ((2, 3), (1, 5), (0, 10), (2, 1000)):
        recipe = load(path, [*settings, f"cluster.loaders={loaders}", f"training.steps={steps}"])
        part = launch.train(recipe, str(tmp_path / "run"), resume=steps > 3)
    assert part.result.samples == whole.result.samples == 2 * 1201
    assert saved(tmp_path / "run") == saved(tmp_path / "whole")


class KillLoader(Observer):
    """Kills the loader after the first epoch."""

    def __init__(self) -> None:
        self.killed: list[int] = []

    def evaluated(self, metrics: Any, progress: Progress) -> None:
        if progress.epoch == 0:
            self.killed.append(children(os.getpid())["loader 0"])
            os.kill(self.killed[0], signal.SIGKILL)


@pytest.mark.cluster
def test_a_run_whose_loader_was_killed_leaves_the_same_model(tmp_path: Path) -> None:
    path, killer, said = make_recipe(tmp_path), KillLoader(), list[str]()
    here = launch.train(load(path), str(tmp_path / "here"))
    there = launch.train(
        load(path, [*SERVERS, "cluster.loaders=1"]),
        str(tmp_path / "there"),
        observers=[killer],
        notice=said.append,
    )
    assert any(f"process {killer.killed[0]}" in line and "restarting it" in line for line in said)
    assert saved(tmp_path / "there") == saved(tmp_path / "here")
    assert there.test == here.test


@pytest.mark.cluster
def test_a_loader_reads_for_a_worker(tmp_path: Path) -> None:
    path = make_recipe(tmp_path)
    seen = Scrape()
    here = launch.train(load(path), str(tmp_path / "here"))
    settings = [*SERVERS, "cluster.loaders=1", "cluster.metrics_port=0"]
    there = launch.train(
        load(path, settings), str(tmp_path / "there"), observers=[seen], notice=seen.said.append
    )
    assert saved(tmp_path / "there") == saved(tmp_path / "here")
    assert there.test == here.test
    loader = seen.found["[loader 0] satrap loader"]
    assert loader["satrap_loader_samples_total"] == 2 * (1600 + 200)
    assert loader["satrap_loader_passes"] == 0


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("mode", "workers", "middle"),
    [
        pytest.param("hybrid", 1, 1, marks=pytest.mark.slow),
        pytest.param("sync", 2, 1, marks=pytest.mark.slow),
        ("sync", 2, 2),
    ],
)
def test_embedding_workers_change_nothing_but_who_pools(
    tmp_path: Path, mode: str, workers: int, middle: int
) -> None:
    path, seen = make_recipe(tmp_path, rows=frame(1501)), Scrape()
    settings = [*SERVERS, f"training.mode={mode}", f"cluster.workers={workers}", "cluster.shards=2"]
    here = launch.train(load(path, settings), str(tmp_path / "here"))
    more = [f"cluster.embedding_workers={middle}", "cluster.loaders=1", "cluster.metrics_port=0"]
    there = launch.train(
        load(path, [*settings, *more]), str(tmp_path / "there"), observers=[seen], notice=seen.said.append
    )
    assert saved(tmp_path / "there") == saved(tmp_path / "here")
    assert there.test == here.test
    assert there.result.staleness == here.result.staleness
    found = [seen.found[f"[embedding worker {i}] satrap embedding-worker"] for i in range(middle)]
    assert [one["satrap_embedding_worker_workers"] for one in found] == [workers / middle] * middle
    pooled = sum(one["satrap_embedding_worker_samples_total"] for one in found)
    assert 0 <= pooled - 2 * (1201 + 150) <= 150  # the test rows come next
    assert all(one["satrap_embedding_worker_refused_requests_total"] == 0 for one in found)


def test_one_worker_alone_meets_nobody() -> None:
    nothing: Any = None
    alone = Assignment("run", {}, 0, 1, "", ())
    maps = MapLog(Path(), 1, ShardMap(1), [])
    cluster = _ClusterActions(
        nothing, nothing, nothing, alone, nothing, nothing, (), nothing, nothing, maps, nothing, set()
    )
    assert cluster._meeting_point() == ""
