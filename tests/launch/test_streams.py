"""Runs that train on a log of events: as on files, once, across stops and kills, as long as events come."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import satrap
from satrap import launch
from satrap.checkpoint import Series
from satrap.checkpoint.feed import Feed
from satrap.config import load
from satrap.data.streams import FolderLog, read_stream
from satrap.train import Checkpointing, Observer, Progress, Publishing
from tests.launch.runs import RECIPE, frame, lines_of
from tests.support.clusters import COLLECTIVE, SERVERS
from tests.support.interruptions import KillAt, KilledError
from tests.support.logs import put
from tests.support.snapshots import saved

FILES = RECIPE.replace("  split: {modulo: 10, validation: [8], test: [9]}\n", "").replace(
    "epochs: 2", "epochs: 1"
)
STREAM = FILES.replace("train: rows.csv", "stream: {folder: log, time: at}")
ROWS, AT = 2000, 1_700_000_000
EVERY_STEP = "checkpoint.every_steps=1"


def columns() -> dict[str, Any]:
    """Clicks of two and a half hours."""
    rows = frame(ROWS)
    return {**{name: rows[name].tolist() for name in rows}, "at": (AT + np.arange(ROWS) * 4.5).tolist()}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe, and a log with files of different sizes."""
    whole, start = columns(), 0
    for number, size in enumerate((700, 1, 299, 600, 400)):
        put(tmp_path / "log", f"{number}.parquet", {k: v[start : start + size] for k, v in whole.items()})
        start += size
    path = tmp_path / "clicks.yaml"
    path.write_text(STREAM, encoding="utf-8")
    return path


def test_a_log_teaches_what_its_rows_teach_as_a_file(recipe: Path) -> None:
    folder = recipe.parent
    pa.parquet.write_table(pa.table(columns()), folder / "rows.parquet")
    (folder / "files.yaml").write_text(FILES.replace("rows.csv", "rows.parquet"), encoding="utf-8")
    files = load(folder / "files.yaml", ["data.shuffle=false"])
    launch.train(files, str(folder / "files"))
    outcome = launch.train(load(recipe), str(folder / "stream"))
    assert outcome.result.samples == ROWS
    assert saved(folder / "stream") == saved(folder / "files")


def test_each_hour_is_measured_before_it_is_learnt(recipe: Path) -> None:
    out = recipe.parent / "run"
    launch.train(load(recipe), str(out))
    hours = [line for line in lines_of(out / "metrics.jsonl") if line["event"] == "event_hour"]
    times = AT + np.arange(ROWS) * 4.5
    names, counts = np.unique(times.astype("M8[s]").astype("M8[h]"), return_counts=True)
    assert [line["hour"] for line in hours] == [f"{name}:00Z" for name in names]
    assert [line["samples"] for line in hours] == counts.tolist()
    assert all(0.4 < line["auc"] < 1 for line in hours)


def test_a_killed_run_goes_on_where_it_was_to_the_bit(recipe: Path) -> None:
    folder, settings = recipe.parent, [EVERY_STEP, "training.mode=sync", "training.staleness=0"]
    whole = launch.train(load(recipe, settings), str(folder / "whole"))
    with pytest.raises(KilledError):
        launch.train(load(recipe, settings), str(folder / "run"), observers=[KillAt(9)])
    outcome = launch.train(None, str(folder / "run"), resume=True)
    assert (outcome.result.samples, outcome.result.steps) == (ROWS, whole.result.steps)
    assert saved(folder / "run") == saved(folder / "whole")
    hours = [
        [line for line in lines_of(folder / name / "metrics.jsonl") if line["event"] == "event_hour"]
        for name in ("run", "whole")
    ]
    assert hours[0] == hours[1]


def test_a_run_that_reached_the_end_goes_on_with_what_has_come_since(recipe: Path) -> None:
    folder = recipe.parent
    whole = {name: values[:300] for name, values in columns().items()}
    assert launch.train(load(recipe), str(folder / "run")).result.samples == ROWS
    again = launch.train(None, str(folder / "run"), resume=True)
    assert (again.result.samples, again.result.stopped) == (ROWS, "epochs")
    put(folder / "log", "9.parquet", whole)
    more = launch.train(None, str(folder / "run"), resume=True)
    assert (more.result.samples, more.result.stopped) == (ROWS + 300, "epochs")
    assert more.result.steps == again.result.steps + 3


class After(Observer):
    """Calls something after so many samples, once."""

    def __init__(self, samples: int, call: Any) -> None:
        self.samples, self.call = samples, call

    def step(self, progress: Progress) -> None:
        if self.call is not None and progress.samples >= self.samples:
            call, self.call = self.call, None
            call()


def test_a_run_that_follows_waits_publishes_and_ends_when_asked(tmp_path: Path) -> None:
    whole = {name: values[:500] for name, values in columns().items()}
    schema = satrap.Schema(["clicked"], {name: satrap.Categorical(dim=4) for name in ("user", "item")})
    put(tmp_path / "log", "0.parquet", {name: values[:300] for name, values in whole.items()})
    stream = read_stream(FolderLog(str(tmp_path / "log")), schema, batch_size=64, wait=0.1, follow=True)
    plan = Checkpointing(str(tmp_path / "saved"), publish=Publishing(str(tmp_path / "feed"), every=0.05))

    def trainer() -> satrap.Trainer:
        return satrap.Trainer(
            satrap.models.DNN(schema, hidden=[4]),
            schema,
            embedding_optimizer=satrap.optim.Adagrad(lr=0.1),
            dense_optimizer=lambda parameters: __import__("torch").optim.Adam(parameters),
        )

    first = trainer()
    more = After(300, lambda: put(tmp_path / "log", "1.parquet", {k: v[300:400] for k, v in whole.items()}))
    ends = After(400, lambda: threading.Timer(0.5, first.request_stop).start())
    result = first.fit(stream, checkpoint=plan, observers=[more, ends])
    assert (result.samples, result.stopped) == (400, "stopped")
    assert Feed(plan.publish.url).latest() == result.steps  # published while no event came
    second = trainer()
    put(tmp_path / "log", "2.parquet", {name: values[400:] for name, values in whole.items()})
    stops = After(500, second.request_stop)
    result = second.fit(stream, checkpoint=plan, resume=True, observers=[stops])
    assert result.samples == 500
    second.close()
    third = trainer()
    with pytest.raises(KeyboardInterrupt):  # there is nowhere to save
        third.fit(stream, observers=[After(500, lambda: threading.Timer(0.2, third.request_stop).start())])
    for one in (first, third):
        one.close()


@pytest.mark.cluster
@pytest.mark.parametrize(
    "settings",
    [
        ["training.mode=sync", *SERVERS],
        ["training.mode=hybrid", *SERVERS],
        ["training.mode=async", *SERVERS],
        ["training.mode=hybrid", *COLLECTIVE],
    ],
    ids=["sync", "hybrid", "async", "collective"],
)
def test_workers_train_on_each_event_once_whatever_their_number(recipe: Path, settings: list[str]) -> None:
    """Two workers, stopped by a number of steps, then three, and then one, of which each goes on."""
    out, samples = str(recipe.parent / "run"), []
    for workers, steps in ((2, "4"), (3, "7"), (1, "null")):
        chosen = [*settings, EVERY_STEP, f"cluster.workers={workers}", f"training.steps={steps}"]
        outcome = launch.train(load(recipe, chosen), out, resume=workers != 2)
        samples.append(outcome.result.samples)
    assert samples[0] < samples[1] < samples[2]
    if "training.mode=async" not in settings:  # where a worker counts its own samples
        assert samples[2] == ROWS
    check_newest(outcome.folder.path)


@pytest.mark.cluster
@pytest.mark.parametrize("mode", ["hybrid", "async"])
def test_a_worker_without_events_ends_with_the_others(tmp_path: Path, mode: str) -> None:
    """The log has one partition, which one of two workers reads; all save at the end."""
    put(tmp_path / "log", "0.parquet", {name: values[:500] for name, values in columns().items()})
    path = tmp_path / "clicks.yaml"
    path.write_text(STREAM, encoding="utf-8")
    settings = [f"training.mode={mode}", *SERVERS, "cluster.workers=2", "checkpoint.every_steps=100"]
    outcome = launch.train(load(path, settings), str(tmp_path / "run"))
    check_newest(outcome.folder.path)
    assert launch.train(None, str(tmp_path / "run"), resume=True).result.steps == outcome.result.steps


def check_newest(run: Path) -> None:
    """The newest snapshot has trained on as many samples as the offsets of all partitions say."""
    series = Series(str(run / "checkpoints"))
    step = series.latest()
    assert step is not None
    settings: Mapping[str, Any] = series.manifest(step).settings
    counts: dict[str, int] = {}
    for one in (settings["run"], *settings["peers"]):
        for stream in one["streams"]:
            for name, (count, _) in ((stream["position"] or {}).get("offsets", {})).items():
                counts[name] = max(counts.get(name, 0), count)
    parts = (settings["run"], *settings["peers"]) if settings["mode"] == "async" else (settings["run"],)
    assert 0 < sum(counts.values()) == sum(one["progress"]["samples"] for one in parts)
