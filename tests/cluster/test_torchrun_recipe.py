"""Workers of a recipe that `torchrun` starts, on one machine and on two: they learn what others learn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from satrap.rpc import create_key
from tests.cluster.machines import Machines, shards
from tests.cluster.runs import PATIENCE, eventually
from tests.launch.runs import RECIPE, lines_of, make_recipe
from tools_dev.chaos.digests import differences, digest

pytestmark = pytest.mark.cluster

SYNC = RECIPE.replace("hybrid, staleness: 2, staleness_warmup: 0, epochs: 2", "sync, epochs: 15")
SETS = ["training.patience=null", "checkpoint.every_steps=25"]
COLLECTIVE = [*SETS, "cluster.exchange=collective"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def command(recipe: Path, run: Path, sets: Sequence[str], *options: str) -> list[str]:
    """The arguments of `torchrun` that train a recipe."""
    words = ["-m", "satrap.cli", "train", str(recipe), "--output", str(run), *options]
    return [*words, *(word for one in sets for word in ("--set", one))]


def plain(recipe: Path, run: Path, sets: Sequence[str]) -> dict[str, str]:
    """What the run has learnt whose two workers satrap starts itself."""
    launch.train(load(recipe, [*sets, "cluster.workers=2"]), str(run))
    return digest(str(run / "model"))


def test_one_machine(tmp_path: Path) -> None:
    recipe, run = make_recipe(tmp_path, SYNC), tmp_path / "run"
    words = command(recipe, run, COLLECTIVE, "--until-done")
    first, again = (
        subprocess.run(
            [*TORCHRUN, "--standalone", "--nproc-per-node", "2", *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("run folder: ") == 1  # one worker speaks
    assert first.stdout.count("test ") == 1
    assert (again.returncode, again.stdout) == (0, f"the run in {run} is complete\n"), again.stderr
    assert differences(digest(str(run / "model")), plain(recipe, tmp_path / "plain", COLLECTIVE)) == []


def machine(machines: Machines, number: int, words: Sequence[str]) -> subprocess.Popen[str]:
    """A worker on one of two machines; `torchrun` starts all again when one has died."""
    run = [
        *TORCHRUN,
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--max-restarts",
        "3",
        "--rdzv-backend",
        "c10d",
    ]
    run += ["--rdzv-endpoint", f"{machines.master}:29400", "--local-addr", machines.addresses[number]]
    run += ["--rdzv-conf", f"is_host={int(number == 0)}"]  # namespaces have no host names of their own
    return subprocess.Popen(
        [*machines.command(number), *run, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def workers_of(torchrun: subprocess.Popen[str]) -> list[int]:
    """The processes that it has started."""
    return [
        int(pid) for pid in Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    ]


@pytest.mark.parametrize("exchange", [pytest.param("servers", marks=pytest.mark.slow), "collective"])
def test_two_machines_and_a_killed_worker(tmp_path: Path, machines: Machines, exchange: str) -> None:
    """All are started again and go on from the newest snapshot; the result is undisturbed."""
    recipe, run, key = make_recipe(tmp_path, SYNC), tmp_path / "run", tmp_path / "key"
    create_key(key)
    with machines, shards(machines, key) as addresses:
        there = [
            "cluster.exchange=servers",
            f"cluster.addresses=[{', '.join(addresses)}]",
            f"cluster.key={key}",
        ]
        sets = [*SETS, *there] if exchange == "servers" else COLLECTIVE
        words = command(recipe, run, sets, "--until-done")
        both = [machine(machines, number, words) for number in range(2)]
        try:
            snapshot = run / "checkpoints"
            assert eventually(lambda: any(snapshot.glob("*/manifest.json")) or both[0].poll() is not None)
            for worker in workers_of(both[1]):
                os.kill(worker, signal.SIGKILL)
            said = [one.communicate(timeout=PATIENCE) for one in both]
        finally:
            for one in both:
                one.kill()
    shown = "\n".join(f"machine {i}:\n{out}\n{err}" for i, (out, err) in enumerate(said))
    assert [one.returncode for one in both] == [0, 0], shown
    assert len(lines_of(run / "sessions.jsonl")) > 1, shown  # somebody has died
    here = [*SETS, "cluster.exchange=servers", "cluster.shards=2"] if exchange == "servers" else COLLECTIVE
    assert differences(digest(str(run / "model")), plain(recipe, tmp_path / "plain", here)) == []


@pytest.mark.slow
def test_a_machine_that_does_not_see_the_run_folder_is_named(tmp_path: Path) -> None:
    """Its own folder lies over the one that the others see."""
    recipe, shared = make_recipe(tmp_path, SYNC), tmp_path / "shared"
    shared.mkdir()
    words = " ".join(command(recipe, shared / "run", COLLECTIVE))
    inside = f'[ "$RANK" = 0 ] || mount -t tmpfs none {shared} || exit 77; exec {sys.executable} {words}'
    ran = subprocess.run(
        [
            *TORCHRUN,
            "--standalone",
            "--nproc-per-node",
            "2",
            "--no-python",
            "unshare",
            "-m",
            "sh",
            "-c",
            inside,
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if "exitcode  : 77" in ran.stderr:
        pytest.skip("no mounts of its own here")
    assert ran.returncode == 1
    assert "worker 1 on " in ran.stderr
    assert "cannot read the run folder" in ran.stderr
