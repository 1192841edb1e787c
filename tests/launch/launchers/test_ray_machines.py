"""A Ray cluster of two machines, network namespaces with 1 ms between them, each way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex

import pytest

from satrap import launch
from satrap.config import load
from satrap.rpc import create_key
from tests.cli.command import SATRAP, Answer
from tests.cluster.conftest import machines
from tests.cluster.machines import Machines
from tests.cluster.runs import PATIENCE, eventually
from tests.launch.launchers.ray_nodes import SMALL
from tests.launch.runs import lines_of, make_recipe
from tests.support.clusters import SERVERS
from tests.support.snapshots import saved

__all__ = ["machines"]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
HEAD, OTHER, PORT, DELAY, PARTITION = 0, 1, 6399, 0.001, 10.0
"""Machines, port of the head, seconds."""
ROLES = [*SERVERS, "cluster.shards=2", "cluster.workers=2"]
RAY = ["cluster.launcher=ray", "cluster.deadline=60"]


def started(machines: Machines, machine: int, folder: str, token: Path) -> subprocess.Popen[bytes]:
    """A node of Ray that runs until it is asked to end."""
    here = machines.addresses[machine]
    head = ["--head", "--port", str(PORT), "--include-dashboard", "false"]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--node-ip-address", here]
    command += head if machine == HEAD else ["--address", f"{machines.master}:{PORT}"]
    command += ["--num-cpus", "2", "--object-store-memory", str(SMALL), "--temp-dir", folder]
    return subprocess.Popen(
        [*machines.command(machine), *command],
        env=environment(token),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def environment(token: Path | None) -> dict[str, str]:
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    quiet["RAY_worker_oom_score_adjustment"] = "0"
    with_token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)} if token else {}
    return {**os.environ, **quiet, **with_token}


@contextmanager
def cluster(machines: Machines, token: Path) -> Iterator[None]:
    with ExitStack() as stack:
        for machine in (HEAD, OTHER):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True))
            node = started(machines, machine, folder, token)
            stack.callback(node.wait, 60)
            stack.callback(node.send_signal, signal.SIGTERM)
            time.sleep(5.0 if machine == HEAD else 0.0)  # the other gives up soon if nobody listens
        yield


def training(
    machines: Machines, recipe: Path, run: Path, token: Path, *settings: str
) -> subprocess.Popen[str]:
    command = [*machines.command(HEAD), str(SATRAP), "train", str(recipe), "--output", str(run)]
    sets = [*ROLES, *RAY, f"cluster.address={machines.master}:{PORT}", "cluster.wait=60", *settings]
    command += [word for one in sets for word in ("--set", one)]
    return subprocess.Popen(
        command, env=environment(token), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answer(run: subprocess.Popen[str]) -> Answer:
    out, err = run.communicate(timeout=PATIENCE)
    return Answer(run.returncode, out, err)


def test_a_run_over_1_ms_and_a_partition_has_the_bytes_of_a_run_on_one_machine(
    tmp_path: Path, machines: Machines
) -> None:
    """Roles need both nodes. Without a key, and with another token, the run is refused by name."""
    recipe, run, key, token = make_recipe(tmp_path), tmp_path / "run", tmp_path / "key", tmp_path / "token"
    create_key(key)
    token.write_text(token_hex(32))
    other = tmp_path / "other"
    other.write_text(token_hex(32))
    for file in (token, other):
        file.chmod(0o600)
    same = ["training.mode=sync", "training.epochs=150", "training.patience=null"]
    far = Machines(len(machines.addresses), "1gbit", delay=DELAY)
    with far, cluster(far, token):
        answer(training(far, recipe, tmp_path / "a", token, *same)).assert_refused("cluster.key is missing")
        said = answer(training(far, recipe, tmp_path / "b", other, *same, f"cluster.key={key}"))
        # Ray itself warns on the way, so the error is not all that is said.
        assert said.code != 0
        assert "cannot reach the Ray cluster" in said.err
        assert "RAY_AUTH_TOKEN_PATH" in said.err
        under_way = training(far, recipe, run, token, *same, f"cluster.key={key}")
        history = run / "metrics.jsonl"
        try:
            assert eventually(lambda: under_way.poll() is not None or history.exists())
            assert under_way.poll() is None, answer(under_way)
            far.cut(OTHER)
            time.sleep(PARTITION)
            held = len(lines_of(history))
            assert held < 150
            far.mend(OTHER)
            done = answer(under_way)
        finally:
            under_way.kill()
    assert done.code == 0, done.err
    for address in far.addresses:
        assert f"ready on {address}:" in done.err + done.out
    launch.train(load(recipe, [*same, *ROLES]), str(tmp_path / "here"))
    assert saved(run) == saved(tmp_path / "here")
