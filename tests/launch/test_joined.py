"""Runs with shard servers and replicated tables: real processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from satrap import launch
from satrap.checkpoint import read_checkpoint
from satrap.config import load
from satrap.train import Observer, Progress
from tests.cluster.runs import children
from tests.launch.runs import frame, make_recipe
from tests.support.clusters import SERVERS, Kill

pytestmark = pytest.mark.cluster
REPLICATED = "cluster.placements={item: replicated}"
SYNC = [*SERVERS, "training.mode=sync", "cluster.workers=2", "cluster.shards=2"]


def left(run: Path) -> dict[str, Any]:
    """Every weight and row of a trained model."""
    found = read_checkpoint(str(run / "model"))
    content: dict[str, Any] = {name: weights.numpy().tobytes() for name, weights in found.model.items()}
    for table, chunk in found.chunks:
        content[table] = content.get(table, b"") + chunk.ids.tobytes() + chunk.weights.tobytes()
    return content


@pytest.mark.parametrize(
    ("who", "how"),
    [
        ("worker 1", signal.SIGKILL),
        ("worker 1", signal.SIGSTOP),
        pytest.param("shard 0", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_sync_leaves_the_model_of_a_run_without_replicas_to_the_bit_whoever_dies(
    tmp_path: Path, who: str, how: signal.Signals
) -> None:
    path = make_recipe(tmp_path, rows=frame(1501))
    settings = [*SYNC, "checkpoint.every_steps=5", "checkpoint.delta_every_steps=2"]
    plain = launch.train(load(path, settings), str(tmp_path / "plain"))
    kill = Kill(who, how)
    mine = launch.train(
        load(path, [*settings, REPLICATED, "cluster.deadline=5"]), str(tmp_path / "run"), observers=[kill]
    )
    assert kill.killed
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["restarts"] == 1
    assert left(tmp_path / "run") == left(tmp_path / "plain")
    assert mine.test == plain.test
    assert launch.evaluate(mine.folder)["auc"] == pytest.approx(mine.test["auc"], abs=1e-6)


def test_a_shard_with_a_journal_comes_back_and_nobody_else_starts_again(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, rows=frame(1501))
    kill = Kill("shard 1")
    settings = [*SYNC, REPLICATED, "checkpoint.durability=journal"]
    launch.train(load(path, settings), str(tmp_path / "run"), observers=[kill])
    launch.train(load(path, SYNC), str(tmp_path / "plain"))
    assert kill.killed
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["repeated_steps"] == 0
    assert left(tmp_path / "run") == left(tmp_path / "plain")


HYBRID = ["cluster.exchange=servers", *SERVERS[2:], "cluster.shards=2"]


@pytest.mark.parametrize("who", ["", "worker 1"])
def test_hybrid_leaves_the_model_of_sync_if_the_workers_hold_all_tables_whoever_dies(
    tmp_path: Path, who: str
) -> None:
    """All tables are small. No shard starts, and no row is stale."""
    path, said = make_recipe(tmp_path, rows=frame(1501)), list[str]()
    launch.train(load(path, SYNC), str(tmp_path / "sync"))
    kill = Kill(who) if who else Roles()
    settings = [*HYBRID, "cluster.workers=2", "training.staleness=3"]
    settings += ["checkpoint.every_steps=5", "checkpoint.delta_every_steps=2"]
    launch.train(load(path, settings), str(tmp_path / "run"), observers=[kill], notice=said.append)
    assert (
        "placement of tables (for details: satrap plan): every worker holds user, item, which are never "
        "stale; no shard is needed" in said
    )
    if isinstance(kill, Roles):
        assert sorted(kill.names) == ["worker 0", "worker 1"]
    else:
        assert json.loads((tmp_path / "run" / "metrics.json").read_text())["restarts"] == 1
    assert left(tmp_path / "run") == left(tmp_path / "sync")


class Roles(Observer):
    """Notes the processes of a run."""

    names: frozenset[str] = frozenset()

    def evaluated(self, metrics: Any, progress: Progress) -> None:
        self.names = frozenset(children(os.getpid())) - {"fork server"}


def test_a_run_whose_shards_held_all_tables_goes_on_without_shards_and_back(tmp_path: Path) -> None:
    path, run = make_recipe(tmp_path, rows=frame(1001)), tmp_path / "run"
    stages = (
        ["cluster.workers=2", "cluster.placement=row_wise"],
        ["cluster.workers=2"],
        ["cluster.workers=1"],
    )
    for epochs, stage in enumerate(stages, 1):
        settings = [*HYBRID, *stage, "checkpoint.every_steps=3", f"training.epochs={epochs}"]
        outcome = launch.train(load(path, settings), str(run), resume=epochs > 1)
    alone = launch.train(load(path, ["training.epochs=3"]), str(tmp_path / "alone"))
    assert outcome.result.samples == alone.result.samples
    assert outcome.test["auc"] == pytest.approx(alone.test["auc"], abs=0.1)


def test_a_run_gains_replicas_loses_them_and_changes_its_processes(tmp_path: Path) -> None:
    path, run = make_recipe(tmp_path, rows=frame(1001)), tmp_path / "run"
    stages = [
        ["cluster.workers=2", "cluster.shards=2", REPLICATED],
        ["cluster.workers=2", "cluster.shards=2"],
        ["cluster.workers=3", "cluster.shards=1", "cluster.placements={user: replicated}"],
    ]
    for epochs, stage in enumerate(stages, 1):
        common = [*SERVERS, "checkpoint.every_steps=3", f"training.epochs={epochs}"]
        outcome = launch.train(load(path, [*common, *stage]), str(run), resume=epochs > 1)
    alone = launch.train(load(path, ["training.epochs=3"]), str(tmp_path / "alone"))
    assert outcome.result.samples == alone.result.samples
    assert outcome.test["auc"] == pytest.approx(alone.test["auc"], abs=0.1)
