"""Runs over shard servers that look ahead: real processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from satrap import launch
from satrap.config import load
from satrap.train import Observer, Progress
from tests.cluster.runs import children
from tests.launch.runs import frame, make_recipe
from tests.support.snapshots import saved

pytestmark = pytest.mark.cluster
SYNC = ["cluster.exchange=servers", "cluster.shards=2", "training.mode=sync"]
EARLY = [*SYNC, "training.lookahead=3"]


class Kill(Observer):
    """Kills a process after the first epoch, once."""

    def __init__(self, name: str) -> None:
        self._name, self.killed = name, 0

    def evaluated(self, metrics: Any, progress: Progress) -> None:
        if not self.killed:
            self.killed = children(os.getpid())[self._name]
            os.kill(self.killed, signal.SIGKILL)


@pytest.mark.parametrize(
    ("name", "restarted"),
    [
        pytest.param("worker 0", ["checkpoint.every_steps=5"], marks=pytest.mark.slow),
        pytest.param("shard 1", ["checkpoint.every_steps=5"], marks=pytest.mark.slow),
        ("shard 1", ["checkpoint.durability=journal"]),
    ],
)
def test_the_model_is_that_of_sync_also_after_a_kill(name: str, restarted: list[str], tmp_path: Path) -> None:
    path = make_recipe(tmp_path, rows=frame(1501))
    sync = launch.train(load(path, SYNC), str(tmp_path / "sync"))
    kill = Kill(name)
    early = launch.train(load(path, [*EARLY, *restarted]), str(tmp_path / "early"), observers=[kill])
    assert kill.killed
    assert json.loads((tmp_path / "early" / "metrics.json").read_text())["restarts"] == 1
    assert saved(tmp_path / "early") == saved(tmp_path / "sync")
    assert early.test == sync.test


def test_rows_of_16_bits_are_rounded_alike(tmp_path: Path) -> None:
    path = make_recipe(tmp_path, rows=frame(1501))
    dtype = ["embedding.dtype=bfloat16"]
    launch.train(load(path, [*SYNC, *dtype]), str(tmp_path / "sync"))
    launch.train(load(path, [*EARLY, *dtype]), str(tmp_path / "early"))
    assert saved(tmp_path / "early") == saved(tmp_path / "sync")
