"""Runs whose workers hold the rows: real processes that `torch.distributed` joins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap import launch
from satrap.config import load
from tests.launch.runs import RECIPE, frame, make_recipe
from tests.support.clusters import COLLECTIVE, SERVERS, Kill
from tests.support.snapshots import saved

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("workers", "placed"),
    [
        pytest.param(1, "cluster.placement=row_wise", marks=pytest.mark.slow),
        pytest.param(2, "cluster.placement=row_wise", marks=pytest.mark.slow),
        (3, "cluster.placement=row_wise"),
        (2, "cluster.placements={user: replicated, item: table_wise}"),
        pytest.param(2, "cluster.placement=replicated", marks=pytest.mark.slow),
        pytest.param(2, "cluster.placement=auto", marks=pytest.mark.slow),
        (2, "training.lookahead=2"),
    ],
)
def test_sync_leaves_the_model_of_a_run_with_shard_servers_to_the_bit(
    tmp_path: Path, workers: int, placed: str
) -> None:
    path = make_recipe(tmp_path, rows=frame(1501))
    settings = ["training.mode=sync", f"cluster.workers={workers}"]
    servers = launch.train(load(path, [*SERVERS, *settings, "cluster.shards=2"]), str(tmp_path / "servers"))
    mine = launch.train(load(path, [*COLLECTIVE, *settings, placed]), str(tmp_path / "collective"))
    assert saved(tmp_path / "collective") == saved(tmp_path / "servers")
    traffic = json.loads((tmp_path / "collective" / "metrics.json").read_text())["traffic"]
    assert (traffic["sent_bytes_per_sample"] > 0) == (workers > 1)
    assert mine.test == servers.test
    assert (mine.result.steps, mine.result.samples) == (servers.result.steps, servers.result.samples)
    assert launch.evaluate(mine.folder)["auc"] == pytest.approx(mine.test["auc"], abs=1e-6)


def test_processes_pool_the_rows_they_hold_for_others_to_the_bit(tmp_path: Path) -> None:
    random, rows = np.random.default_rng(3), frame(1001)
    rows["tags"] = ["|".join(map(str, random.integers(0, 500, 12))) for _ in range(len(rows))]
    text = RECIPE.replace("features:\n", "features:\n  tags: {dim: 4, multi: true, separator: '|'}\n")
    path = make_recipe(tmp_path, text, rows)
    common = ["training.mode=sync", "cluster.workers=2", "cluster.wire={forward: float32, backward: float32}"]
    sent = []
    for placement in ("row_wise", "table_wise"):  # only a whole table is pooled where it lies
        folder = tmp_path / placement
        recipe = load(path, [*COLLECTIVE, *common, f"cluster.placement={placement}"])
        assert launch.train(recipe, str(folder)).result.steps > 0
        sent.append(json.loads((folder / "metrics.json").read_text())["traffic"]["sent_bytes_per_sample"])
    assert saved(tmp_path / "row_wise") == saved(tmp_path / "table_wise")
    assert sent[1] < sent[0] / 2


@pytest.mark.parametrize(
    "exchange",
    [COLLECTIVE, pytest.param([*SERVERS, "cluster.shards=2"], marks=pytest.mark.slow)],
    ids=lambda one: one[0],
)
def test_gradients_of_the_network_travel_in_8_bits(tmp_path: Path, exchange: list[str]) -> None:
    path = make_recipe(tmp_path, rows=frame(3001))
    common = [*exchange, "cluster.workers=2", "data.batch_size=50"]
    found: dict[str, Any] = {}
    for dense, mode in (("float32", "sync"), ("int8", "sync"), ("int8", "hybrid"), ("int8", "async")):
        if mode == "async" and exchange is COLLECTIVE:
            continue  # refused
        folder = tmp_path / f"{dense}-{mode}"
        recipe = load(path, [*common, f"cluster.wire.dense={dense}", f"training.mode={mode}"])
        found[folder.name] = launch.train(recipe, str(folder)).test["auc"]
        workers = json.loads((folder / "metrics.json").read_text())["traffic"]["workers"]
        for rounding in (worker["rounding_dense"] for worker in workers):
            assert 0.001 < rounding < 0.02 if folder.name in ("int8-sync", "int8-hybrid") else rounding == 0
    assert len(set(found.values())) == len(found)
    assert max(found.values()) - min(found.values()) < 0.05


def test_gradients_of_the_network_travel_compressed(tmp_path: Path) -> None:
    """A run that lost a worker is, in its end, one that lost none: errors are in the snapshots."""
    path = make_recipe(tmp_path, rows=frame(1501))
    given = "cluster.wire={dense: powersgd, dense_rank: 1}"
    settings = [*COLLECTIVE, "training.mode=sync", "cluster.workers=2", "checkpoint.every_steps=5", given]
    exact = launch.train(load(path, settings[:-1]), str(tmp_path / "exact"))
    plain = launch.train(load(path, settings), str(tmp_path / "plain"))
    killer = Kill()
    outcome = launch.train(load(path, settings), str(tmp_path / "run"), observers=[killer])
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["restarts"] == 1
    assert outcome.test == plain.test != exact.test
    assert saved(tmp_path / "run") == saved(tmp_path / "plain")
    assert plain.test["auc"] == pytest.approx(exact.test["auc"], abs=0.05)
    workers = json.loads((tmp_path / "plain" / "metrics.json").read_text())["traffic"]["workers"]
    assert all(0.05 < worker["rounding_dense"] < 1 for worker in workers)


def test_a_killed_worker_brings_all_back_to_the_newest_snapshot_and_the_model_is_the_same(
    tmp_path: Path,
) -> None:
    path = make_recipe(tmp_path, rows=frame(1501))
    settings = [*COLLECTIVE, "training.mode=sync", "cluster.workers=2", "checkpoint.every_steps=5"]
    plain = launch.train(load(path, settings), str(tmp_path / "plain"))
    killer = Kill()
    outcome = launch.train(load(path, settings), str(tmp_path / "run"), observers=[killer])
    assert killer.killed
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["restarts"] == 1
    assert outcome.test == plain.test
    assert saved(tmp_path / "run") == saved(tmp_path / "plain")


def test_a_run_moves_from_shard_servers_to_three_workers_that_hold_the_rows(
    tmp_path: Path,
) -> None:
    path = make_recipe(tmp_path, rows=frame(1501))
    common = ["training.mode=sync", "checkpoint.every_steps=5", "training.epochs=1"]
    launch.train(
        load(path, [*SERVERS, *common, "cluster.workers=2", "cluster.shards=3"]), str(tmp_path / "run")
    )
    again = [*COLLECTIVE, *common[:2], "training.epochs=2", "cluster.workers=3"]
    outcome = launch.train(load(path, again), str(tmp_path / "run"), resume=True)
    straight = launch.train(
        load(path, [*SERVERS, *common[:2], "training.epochs=2", "cluster.workers=2", "cluster.shards=3"]),
        str(tmp_path / "straight"),
    )
    assert outcome.result.samples == straight.result.samples
    assert outcome.test["auc"] == pytest.approx(straight.test["auc"], abs=0.05)
