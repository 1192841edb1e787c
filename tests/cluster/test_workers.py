"""Workers come and go while a run of real processes trains; what it learns does not depend on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from tests.cli.command import process, satrap
from tests.cluster.runs import children, eventually
from tests.launch.runs import RECIPE, frame, make_recipe
from tests.support.asked_runs import ALIKE, SERVERS, TEXT, WIRE, Run, asked

pytestmark = pytest.mark.cluster
PARTS = ("shard", "loader")


def of(run: Run, *kinds: str) -> dict[str, int]:
    return {name: pid for name, pid in children(run.popen.pid).items() if name.startswith(kinds)}


def changed(run: Run) -> list[int]:
    """Have one worker, then two, then one train; return the steps at which they changed."""
    steps = []
    assert eventually(lambda: run.popen.poll() is not None or of(run, "worker")), run.log.read_text()
    servers = of(run, *PARTS)
    for number in (2, 1):
        answer = asked(run, number)
        assert (answer["before"], answer["workers"]) == (3 - number, number)
        assert sorted(of(run, "worker")) == [f"worker {i}" for i in range(number)]
        assert of(run, *PARTS) == servers
        steps.append(answer["step"])
    return steps


@pytest.mark.parametrize(
    ("shuffle", "loaders"), [pytest.param("false", 0, marks=pytest.mark.slow), ("true", 1)]
)
def test_one_two_and_one_worker_take_the_steps_of_one(tmp_path: Path, shuffle: str, loaders: int) -> None:
    """In the middle of the first pass; shuffled, until its end: then each has a buffer of its own."""
    same = [*ALIKE, f"data.shuffle={shuffle}"]
    recipe = make_recipe(tmp_path, TEXT, frame(60_000))
    with Run(
        tmp_path, *same, *SERVERS, *WIRE, f"cluster.loaders={loaders}", base=[], text=TEXT, rows=frame(60_000)
    ) as run:
        steps = changed(run)
        run.ended()
    assert 0 < steps[0] < steps[1] < 480 * (1 if shuffle == "true" else 3)
    one = launch.train(load(recipe, same), str(tmp_path / "one"))
    found = json.loads((run.folder / "metrics.json").read_text())
    assert found["steps"] == one.result.steps == 3 * 480
    for name in ("auc", "logloss"):
        assert found["test"][name] == pytest.approx(one.test[name], rel=1e-4)
        assert found["validation"][name] == pytest.approx(one.result.history[-1][name], rel=1e-4)


@pytest.mark.parametrize("exchange", ["servers", pytest.param("collective", marks=pytest.mark.slow)])
def test_each_sample_is_trained_once_and_a_resume_has_the_number_asked_for_last(
    tmp_path: Path, exchange: str
) -> None:
    settings = [f"cluster.exchange={exchange}", "cluster.workers=1", "cluster.shards=1", "training.epochs=6"]
    with Run(tmp_path, *settings, base=[], text=RECIPE, rows=frame(60_000)) as run:
        asked(run, 2)
        for wrong, why in ((2, "already has 2 workers"), (0, "Invalid value")):
            assert why in satrap("workers", run.folder, wrong).err
        run.popen.terminate()
        run.ended()
    assert "no run in this folder accepts requests" in satrap("workers", run.folder, 3).err
    assert json.loads((run.folder / "workers.json").read_text()) == {"recipe": 1, "workers": 2}
    again = process("train", tmp_path / "clicks.yaml", "--output", run.folder, "--resume", *_sets(settings))
    assert again.code == 0, again.err
    assert "2 workers" in again.err
    found = json.loads((run.folder / "metrics.json").read_text())
    assert found["samples"] == 6 * 48_000
    assert len(found["traffic"]["workers"]) == 2


@pytest.mark.slow
def test_a_single_worker_holds_all_rows_where_no_shard_was_started(tmp_path: Path) -> None:
    settings = ["cluster.exchange=servers", "cluster.workers=2", "training.epochs=8"]
    with Run(tmp_path, *settings, base=[], text=RECIPE, rows=frame(60_000)) as run:
        for number in (1, 3):
            asked(run, number)
            assert of(run, "shard") == {}
        why = "the workers hold all tables"
        assert why in satrap("shards", "list", run.folder).err
        run.ended()
    found = json.loads((run.folder / "metrics.json").read_text())
    assert found["samples"] == 8 * 48_000


def _sets(settings: list[str]) -> list[str]:
    return [word for one in settings for word in ("--set", one)]


@pytest.mark.parametrize(
    ("setting", "number", "why"),
    [
        (["data.global_batch=true", "cluster.workers=2"], 3, "is not divisible by"),
        pytest.param(
            ["cluster.loaders=2", "cluster.workers=2"], 1, "cluster.loaders is 2", marks=pytest.mark.slow
        ),
        pytest.param(
            ["dense.mesh={data: 1, tensor: 2}", "cluster.workers=2"],
            4,
            "a part of the network",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_the_recipe_does_not_allow_is_refused_and_the_run_goes_on(
    tmp_path: Path, setting: list[str], number: int, why: str
) -> None:
    with Run(tmp_path, "cluster.exchange=servers", *setting, base=[], text=TEXT, rows=frame(20_000)) as run:
        assert eventually(
            lambda: why in satrap("workers", run.folder, number).err
        )  # once it accepts requests
        run.ended()
    assert not (run.folder / "workers.json").exists()
