"""Shards join and leave a run of real processes; what it learns does not depend on it, whoever dies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from satrap.data.encode.hashing import hash_ids
from satrap.store import BUCKETS, bucket_of
from tests.cli.command import satrap
from tests.cluster.runs import alive, children, eventually
from tests.launch.runs import frame
from tests.support.asked_runs import Run, targets
from tools_dev.chaos.digests import differences, digest


@pytest.mark.cluster
def test_two_three_and_two_shards_under_training_give_the_model_of_two(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("moved", "plain")]
    for folder in folders:
        folder.mkdir()
    with Run(folders[0], "cluster.metrics_port=0") as moved, Run(folders[1]) as plain:
        _move_and_compare(moved, plain)


def _move_and_compare(moved: Run, plain: Run) -> None:
    assert moved.training()
    added = moved.shards("add")
    assert [one["shard"] for one in added["shards"]] == [0, 1, 2]
    assert added["rows"] > 0
    listed = moved.shards("list")
    assert sum(one["rows"] for one in listed["shards"]) > added["rows"]
    drained = moved.shards("drain", 0)
    assert [one["shard"] for one in drained["shards"]] == [1, 2]
    assert eventually(lambda: len([c for c in children(moved.popen.pid) if c.startswith("shard")]) == 2)
    assert eventually(lambda: targets(moved) == ["shard-1", "shard-2", "worker-0", "worker-1"], 30)
    balanced = moved.shards("balance")
    rows = [one["rows"] for one in balanced["shards"]]
    assert max(rows) - min(rows) <= 4, rows
    for run in (moved, plain):
        run.ended()
    ends = [digest(str(run.folder / "model")) for run in (moved, plain)]
    assert differences(*ends) == []


def hot() -> pd.DataFrame:
    """Clicks of users and items of which most are in buckets of the first of two shards."""
    random, rows = np.random.default_rng(5), frame()
    for table in ("user", "item"):
        values = pd.Series([f"{table}{i}" for i in range(80)])
        first = bucket_of(table, hash_ids(values)) < BUCKETS // 2
        chances = np.where(first, 0.85 / first.sum(), 0.15 / (~first).sum())
        rows[table] = random.choice(values, len(rows), p=chances)
    return rows


@pytest.mark.cluster
@pytest.mark.slow
def test_where_one_shard_has_the_hot_rows_traffic_gets_even_and_the_model_stays(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("moved", "plain")]
    for folder in folders:
        folder.mkdir()
    moved, plain = (Run(folder, rows=hot()) for folder in folders)
    with moved, plain:
        assert moved.training()
        before = [one["traffic"] for one in moved.shards("list")["shards"]]
        assert before[0] > 0.65
        assert sum(before) == pytest.approx(1)
        even = moved.shards("balance", "--by", "traffic")
        assert even["rows"] > 0
        assert abs(even["shards"][0]["traffic"] - 0.5) < 0.03, even
        again = moved.shards("balance", "--by", "traffic")
        assert again["buckets"] <= 4, again
        size = moved.shards("balance", "--by", "bytes")
        rows = [one["rows"] for one in size["shards"]]
        assert max(rows) - min(rows) <= 4, rows  # they are all of one size
        for run in (moved, plain):
            run.ended()
    ends = [digest(str(run.folder / "model")) for run in (moved, plain)]
    assert differences(*ends) == []


@pytest.mark.slow  # minutes, and not part of CI
@pytest.mark.parametrize("who", ["shard 0", "shard 2", "worker 0", "worker 1"])
@pytest.mark.parametrize("durability", ["journal", "snapshot"])
def test_whoever_is_killed_after_a_move_the_run_recovers_and_keeps_the_map(
    tmp_path: Path, who: str, durability: str
) -> None:
    settings = [f"checkpoint.durability={durability}", "checkpoint.every_steps=30", "cluster.restarts=5"]
    with Run(tmp_path, *settings, "training.epochs=100000") as run:
        assert run.training()
        run.shards("add")
        time.sleep(1.0)  # a snapshot or two
        roles = children(run.popen.pid)
        os.kill(roles[who], signal.SIGKILL)
        assert eventually(lambda: len(set(children(run.popen.pid).values()) - set(roles.values())) > 0)
        listed = run.shards("list")
        assert [one["shard"] for one in listed["shards"]] == [0, 1, 2]
        drained = run.shards("drain", 1)
        assert [one["shard"] for one in drained["shards"]] == [0, 2]
        for pid in children(run.popen.pid).values():
            os.kill(pid, signal.SIGKILL)
        run.popen.send_signal(signal.SIGKILL)


@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_has_the_shards_of_its_last_move(tmp_path: Path) -> None:
    with Run(tmp_path, "checkpoint.every_steps=20", "training.epochs=100000") as run:
        assert run.training()
        run.shards("add")
        assert eventually(lambda: (run.folder / "checkpoints").exists())
        time.sleep(1.0)
        roles = children(run.popen.pid)
        run.popen.kill()
        run.popen.wait()
        assert eventually(lambda: not any(map(alive, roles.values())))
    with Run(tmp_path, "training.epochs=100000", resume=True) as again:
        asked = eventually(lambda: satrap("shards", "list", again.folder).code == 0)
        assert asked, again.log.read_text()
        listed = again.shards("list")
        assert [one["shard"] for one in listed["shards"]] == [0, 1, 2]
        assert listed["epoch"] > 2
        assert sum(one["rows"] for one in listed["shards"]) > 20
        drained = again.shards("drain", 2)
        assert [one["shard"] for one in drained["shards"]] == [0, 1]
