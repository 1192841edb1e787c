"""A worker that dies in a run with snapshots: the others start again with it, and the result is the same."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from satrap.checkpoint import Series
from tests.cli.command import process as run_command
from tests.cluster.runs import PATIENCE, children, eventually
from tests.launch.runs import RECIPE, frame, make_recipe
from tools_dev.chaos.cluster_kills import start
from tools_dev.chaos.digests import digest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


EXACT = (
    RECIPE.replace(
        "mode: hybrid, staleness: 2, staleness_warmup: 0, epochs: 2", "mode: sync, epochs: 12, patience: null"
    ).replace("hidden: [8]", "hidden: [8], dropout: 0.2")
    + "cluster: {exchange: servers, workers: 2, shards: 2, wire: {forward: float32, backward: float32}, "
    + "restarts: 1000}\ncheckpoint: {every_steps: 11, keep: 2}\n"
)
"""A run that ends with the same bytes whoever died."""


@contextlib.contextmanager
def started(recipe: Path, run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run under way; its launcher is killed at the end of the block, also where a check has failed."""
    with start(recipe, run, False) as process:
        try:
            yield process
        finally:
            process.kill()


def model_of(run: Path) -> dict[str, str]:
    return digest(str(run / "model"))


def kill_a_worker(run: Path, process: subprocess.Popen[bytes], name: str, after: int | None) -> None:
    """Kill a worker once a snapshot after that step is there; None: before there is any."""
    series = Series(str(run / "checkpoints"))
    if after is None:
        assert eventually(lambda: name in children(process.pid))
    else:
        assert eventually(lambda: (series.latest() or 0) > after or process.poll() is not None)
    assert process.poll() is None
    time.sleep(random.uniform(0, 0.3))
    os.kill(children(process.pid)[name], signal.SIGKILL)


def started_again(run: Path, times: int) -> int:
    """Wait until the workers have been started again so often; return the newest snapshot of before."""
    log = run.with_suffix(".log")
    assert eventually(lambda: f"(restart {times} of" in log.read_text())
    return Series(str(run / "checkpoints")).latest() or 0


def test_the_result_is_that_of_an_undisturbed_run(tmp_path: Path) -> None:
    """Killed three times, the first time before any snapshot; the shards are the same all the time."""
    recipe = make_recipe(tmp_path, EXACT, frame(8000))
    expected, run = tmp_path / "expected", tmp_path / "run"
    assert start(recipe, expected, False).wait(PATIENCE) == 0
    with started(recipe, run) as process:
        shards: dict[str, int] = {}
        newest: int | None = None
        for times, name in enumerate(("worker 0", "worker 1", "worker 0"), 1):
            kill_a_worker(run, process, name, newest)
            newest = started_again(run, times)
            found = {k: v for k, v in children(process.pid).items() if k.startswith("shard")}
            shards = shards or found
            assert found == shards
        assert process.wait(PATIENCE) == 0
    assert model_of(run) == model_of(expected)
    assert (run / "metrics.jsonl").read_text().count('"validation"') == 12
    said = run.with_suffix(".log").read_text()
    assert "worker 0 was killed by SIGKILL" in said
    assert "all workers restart from the beginning" in said
    assert "all workers restart from the snapshot of step" in said
    assert "(restart 3 of 1000)" in said


@pytest.mark.slow
def test_deltas_bring_back_shards_workers_and_the_run(tmp_path: Path) -> None:
    """A shard (from chain and journal), a worker and the launcher are killed; three shards then go on."""
    keep = "{every_steps: 60, delta_every_steps: 11, keep: 9, durability: journal}"
    text = EXACT.replace("{every_steps: 11, keep: 2}", keep)
    assert keep in text
    recipe, expected, run = make_recipe(tmp_path, text, frame(8000)), tmp_path / "expected", tmp_path / "run"
    assert start(recipe, expected, False).wait(PATIENCE) == 0
    series = Series(str(run / "checkpoints"))
    with started(recipe, run) as process:
        for name, after in (("shard 1", 20), ("worker 0", 70)):
            kill_a_worker(run, process, name, after)
        assert eventually(lambda: (series.latest() or 0) > 130)
    said = run.with_suffix(".log").read_text()
    assert "[shard 1] lost; restarting from snapshot step-" in said
    assert "worker 0 was killed by SIGKILL" in said
    kept = series.steps()
    links = [series.manifest(step).delta for step in kept]
    assert sum(link is not None for link in links) >= len(kept) // 2
    assert run_command("checkpoint", "verify", run).code == 0
    assert "delta" in run_command("checkpoint", "inspect", run).out
    again = run_command("train", recipe, "--output", run, "--resume", "--set", "cluster.shards=3")
    assert again.code == 0, again.err
    assert model_of(run) == model_of(expected)
    later = [series.manifest(step).delta for step in series.steps() if step > kept[-1]]
    assert later
    assert later[0] is not None
    assert later[0].previous == f"step-{kept[-1]:08d}"
    assert run_command("checkpoint", "compact", run).code == 0
    assert run_command("checkpoint", "reshard", run, "--shards", "2").code == 0
    assert run_command("checkpoint", "verify", run).code == 0


def test_no_more_often_than_the_recipe_says(tmp_path: Path) -> None:
    text = EXACT.replace("restarts: 1000", "restarts: 1").replace("epochs: 12", "epochs: 1000")
    run = tmp_path / "run"
    with started(make_recipe(tmp_path, text), run) as process:
        kill_a_worker(run, process, "worker 1", 0)
        kill_a_worker(run, process, "worker 0", started_again(run, 1))
        assert process.wait(PATIENCE) == 1
    assert "error: worker 0 was killed by SIGKILL" in run.with_suffix(".log").read_text()
    assert Series(str(run / "checkpoints")).latest() is not None


@pytest.mark.slow
@pytest.mark.parametrize("change", ["cluster.shards=3", "cluster.workers=3"])
def test_a_run_goes_on_with_another_number_of_shards_or_workers(tmp_path: Path, change: str) -> None:
    recipe = make_recipe(tmp_path, EXACT, frame(8000))
    expected, run = tmp_path / "expected", tmp_path / "run"
    assert start(recipe, expected, False).wait(PATIENCE) == 0
    series = Series(str(run / "checkpoints"))
    with started(recipe, run):
        assert eventually(lambda: (series.latest() or 0) > 20)
    again = run_command("train", recipe, "--output", run, "--resume", "--set", change)
    assert again.code == 0, again.err
    before, after = (json.loads((folder / "metrics.json").read_text()) for folder in (expected, run))
    assert after["samples"] == before["samples"]
    assert after["auc"] == pytest.approx(before["auc"], abs=0.02)
    if "shards" in change:
        assert model_of(run) == model_of(expected)
