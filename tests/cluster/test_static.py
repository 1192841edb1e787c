"""Shards on another machine, started by hand: with and without the key, cut off for a while, far away."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from satrap.rpc import create_key
from tests.cli.command import SATRAP, Answer
from tests.cluster.machines import ROWS, WORKERS, Machines, shards
from tests.cluster.runs import PATIENCE, eventually
from tests.launch.runs import lines_of, make_recipe
from tests.support.clusters import SERVERS
from tests.support.snapshots import saved

pytestmark = pytest.mark.cluster
PARTITION, DELAY = 10.0, 0.001
"""Seconds."""


def training(machines: Machines, recipe: Path, run: Path, *settings: str) -> subprocess.Popen[str]:
    """A run whose workers are on the first machine."""
    command = [*machines.command(WORKERS), str(SATRAP), "train", str(recipe), "--output", str(run)]
    command += [word for one in settings for word in ("--set", one)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer(run: subprocess.Popen[str]) -> Answer:
    out, err = run.communicate(timeout=PATIENCE)
    return Answer(run.returncode, out, err)


def test_a_partition_heals_and_nothing_is_lost(tmp_path: Path, machines: Machines) -> None:
    """The rows and the network are those of one process, to the bit."""
    recipe, run, key = make_recipe(tmp_path), tmp_path / "run", tmp_path / "key"
    create_key(key)
    same = ["training.mode=sync", "training.epochs=15", "training.patience=null"]
    with machines, shards(machines, key) as addresses:
        there = [*SERVERS, f"cluster.addresses=[{', '.join(addresses)}]", f"cluster.key={key}"]
        started, history = training(machines, recipe, run, *same, *there), run / "metrics.jsonl"
        try:
            assert eventually(lambda: started.poll() is not None or history.exists())
            assert started.poll() is None, answer(started)
            machines.cut(ROWS)
            time.sleep(1.0)
            cut = len(lines_of(history))
            time.sleep(PARTITION - 1.0)
            assert len(lines_of(history)) <= cut + 1  # an evaluation that had its rows
            machines.mend(ROWS)
            done = answer(started)
        finally:
            started.kill()
    assert done.code == 0, done.err
    launch.train(load(recipe, same), str(tmp_path / "here"))
    assert saved(run) == saved(tmp_path / "here")


def test_without_the_key_a_run_is_refused_and_so_is_a_shard(tmp_path: Path, machines: Machines) -> None:
    recipe, key, other = make_recipe(tmp_path), tmp_path / "key", tmp_path / "other"
    create_key(key)
    create_key(other)
    with machines, shards(machines, key, count=1) as addresses:
        for wrong in ([], [f"cluster.key={other}"]):
            settings = [*SERVERS, f"cluster.addresses=[{addresses[0]}]", *wrong]
            said = answer(training(machines, recipe, tmp_path / "refused", *settings))
            assert said.code in (1, 2)
            said.assert_refused("key", code=said.code)
        open_to_all = ["shard", "--listen", f"{machines.addresses[ROWS]}:7009"]
        shard = subprocess.Popen(
            [*machines.command(ROWS), str(SATRAP), *open_to_all],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        answer(shard).assert_refused("key")


def test_a_delay_of_1_ms_changes_no_byte(tmp_path: Path, machines: Machines) -> None:
    """Each way, over a link that delays every frame; with the key."""
    recipe, run, key = make_recipe(tmp_path), tmp_path / "run", tmp_path / "key"
    create_key(key)
    same = ["training.mode=sync", "training.epochs=5", "training.patience=null"]
    slow = Machines(len(machines.addresses), "1gbit", delay=DELAY)
    with slow, shards(slow, key) as addresses:
        assert connecting(slow, addresses[0]) >= 2 * DELAY
        there = [*SERVERS, f"cluster.addresses=[{', '.join(addresses)}]", f"cluster.key={key}"]
        done = answer(training(slow, recipe, run, *same, *there))
    assert done.code == 0, done.err
    launch.train(load(recipe, same), str(tmp_path / "here"))
    assert saved(run) == saved(tmp_path / "here")


CONNECT = """
import socket, sys, time
seconds = []
for _ in range(5):  # the first also asks for the other's hardware address
    began = time.perf_counter()
    socket.create_connection((sys.argv[1], int(sys.argv[2]))).close()
    seconds.append(time.perf_counter() - began)
print(min(seconds))
"""


def connecting(machines: Machines, address: str) -> float:
    """Seconds in which the first machine connects to an address."""
    command = [*machines.command(WORKERS), sys.executable, "-c", CONNECT, *address.rsplit(":", 1)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
