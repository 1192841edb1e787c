"""A server that follows a run: new snapshots are served, bad ones are not, no answer is of two steps."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from satrap import launch
from satrap.checkpoint import Series
from satrap.checkpoint.manifest import read_manifest
from satrap.checkpoint.storage import Storage
from satrap.config import load
from satrap.launch.folder import RunFolder
from satrap.launch.scoring import load_predictor
from satrap.serve import overlay
from satrap.serve.follow import Follower
from satrap.serve.model import ServedModel
from satrap.serve.update import Update
from satrap.train import Predictor
from tests.serve.requests import plain
from tests.serve.served import RECIPE, Served, served


@pytest.fixture(scope="module")
def trained(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that has left snapshots of some steps; every second one is a delta."""
    folder = tmp_path_factory.mktemp("followed")
    (folder / "rows.parquet").write_bytes((run.path.parent / "rows.parquet").read_bytes())
    every = ["checkpoint.every_steps=8", "checkpoint.delta_every_steps=2", "checkpoint.keep=9"]
    settings = ["training.epochs=5", *every]
    (folder / "books.yaml").write_text(RECIPE, encoding="utf-8")
    launch.train(load(folder / "books.yaml", settings), str(folder / "books"))
    found = RunFolder.open(folder / "books")
    assert len(steps(found)) >= 4
    return found


def steps(trained: RunFolder) -> list[int]:
    """Return the steps of its first snapshots."""
    return Series(str(trained.checkpoints)).steps()[:4]


def snapshot(trained: RunFolder, step: int, *, known: bool = False) -> ServedModel:
    """Return the model of a step; with `known` it can be updated by the deltas after it."""
    place = Series(str(trained.checkpoints)).place(step)
    version = read_manifest(Storage(place)).id if known else ""
    return ServedModel("books", load_predictor(trained, trained.recipe(), place), version=version)


class Appearing(Series):
    """The snapshots of a run, up to a step."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.newest = self.steps()[0]

    def latest(self) -> int | None:
        return self.newest


def expected(trained: RunFolder, rows: pd.DataFrame) -> dict[int, Any]:
    """The scores of each step, by a predictor of its own."""
    from satrap.data import read

    found = {}
    for step in steps(trained):
        predictor = Predictor.load(Series(str(trained.checkpoints)).place(step))
        data = read(rows, predictor.schema.without_labels(), batch_size=len(rows))
        found[step] = predictor.predict_all(data)[:, 0]
        predictor.close()
    return found


def eventually(check: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not check():
        assert time.monotonic() < until
        time.sleep(0.01)


class Followed:
    """What clients were answered while a server followed a run, and what each step should answer."""

    def __init__(self, trained: RunFolder, rows: pd.DataFrame, *, known: bool) -> None:
        self.wanted, self._request = expected(trained, rows), {"items": plain(rows)}
        differ = [np.abs(a - b).max() for a, b in pairwise(self.wanted.values())]
        assert min(differ) > 1e-4  # a mixture would be noticed
        self.answers: list[tuple[int, Any]] = []
        self._stopping = threading.Event()
        series = Appearing(str(trained.checkpoints))
        load = lambda step: snapshot(trained, step, known=known)  # noqa: E731
        with served(load(min(self.wanted))) as server:
            threads = [threading.Thread(target=self._ask, args=(server,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            with Follower(series, load, server.scorer, notice=pytest.fail) as follower:
                self.statistics = follower.statistics
                for step in list(self.wanted)[1:]:
                    series.newest = step
                    eventually(lambda step=step: server.scorer.model.step == step)  # type: ignore[misc]
                    asked = len(self.answers)
                    eventually(lambda asked=asked: len(self.answers) > asked + 20)  # type: ignore[misc]
            self._stopping.set()
            for thread in threads:
                thread.join()
        self.whole = [series.manifest(step).delta is None for step in list(self.wanted)[1:]]

    def _ask(self, server: Served) -> None:
        while not self._stopping.is_set():
            status, answer = server.score(self._request)
            assert status == 200
            self.answers.append((answer["step"], answer["predictions"]["clicked_probability"]))

    @property
    def mixed(self) -> int:
        """Number of answers that are not those of the step they name."""
        return sum(
            not np.allclose(scores, self.wanted[step], rtol=1e-6, atol=1e-6) for step, scores in self.answers
        )


@pytest.mark.parametrize("known", [False, True])
def test_each_answer_is_of_the_step_it_names_and_steps_never_fall(
    known: bool, trained: RunFolder, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots are loaded as a whole, or, if the served one is known, by the rows that changed."""
    monkeypatch.setattr(overlay, "FOLDED_ROWS", 3)  # so that there are many batches while rows are written
    found = Followed(trained, rows, known=known)
    assert {step for step, _ in found.answers} == found.wanted.keys()
    assert found.mixed == 0
    assert found.statistics.updates == len(found.whole)
    assert found.statistics.reloads == (sum(found.whole) if known else len(found.whole))
    assert not all(found.whole)


def test_rows_that_are_simply_loaded_would_be_noticed(
    trained: RunFolder, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test before can fail: here the rows of an update are written under the eyes of the clients."""

    def written(self: Follower, model: ServedModel, update: Update) -> None:
        while update.overlay.fold():
            time.sleep(0.005)
        model._predictor.network, model.step, model.version = update.network, update.step, update.version

    monkeypatch.setattr(Follower, "_apply", written)
    monkeypatch.setattr(overlay, "FOLDED_ROWS", 3)
    assert Followed(trained, rows, known=True).mixed > 0


def test_a_step_that_is_not_served_any_more_is_not_answered_by_another(
    trained: RunFolder, rows: pd.DataFrame
) -> None:
    first, second, *_ = steps(trained)
    with served(snapshot(trained, first)) as server:
        request = {"items": plain(rows), "step": first}
        assert server.score(request)[0] == 200
        server.scorer.swap(snapshot(trained, second))
        eventually(lambda: server.scorer.model.step == second)
        status, answer = server.score(request)
        assert (status, answer["error"]["what"]) == (404, f"step {first} is not served")


def test_a_damaged_snapshot_is_refused_by_name_and_the_next_one_served(
    trained: RunFolder, rows: pd.DataFrame
) -> None:
    series = Appearing(str(trained.checkpoints))
    first, second, third, _ = steps(trained)
    [file] = Path(series.place(second)).glob("data-*/table-000*.arrow")
    original = file.read_bytes()
    file.write_bytes(original[:-9] + bytes([original[-9] ^ 1]) + original[-8:])
    notices: list[str] = []
    try:
        with served(snapshot(trained, first)) as server:
            load = lambda step: snapshot(trained, step)  # noqa: E731
            with Follower(series, load, server.scorer, notice=notices.append) as follower:
                series.newest = second
                eventually(lambda: follower.statistics.refused == 1)
                assert server.score({"items": plain(rows)})[1]["step"] == first
                [notice] = notices
                assert f"step {second} is not served" in notice
                assert os.fspath(file) in notice
                file.write_bytes(original)
                series.newest = third
                eventually(lambda: server.scorer.model.step == third)
                assert follower.statistics.updates == 1
    finally:
        file.write_bytes(original)


def test_another_schema_is_refused(trained: RunFolder, rows: pd.DataFrame) -> None:
    first, second, *_ = steps(trained)
    with served(snapshot(trained, first)) as server:
        other = snapshot(trained, second)
        other.columns.append("more")
        series, notices = Appearing(str(trained.checkpoints)), list[str]()
        with Follower(series, lambda _: other, server.scorer, notice=notices.append) as follower:
            series.newest = second
            eventually(lambda: follower.statistics.refused == 1)
        assert "another schema" in notices[0]
        assert server.score({"items": plain(rows)})[1]["step"] == first


def test_counters_go_on_after_a_swap(trained: RunFolder, rows: pd.DataFrame) -> None:
    first, second, *_ = steps(trained)
    with served(snapshot(trained, first)) as server:
        server.score({"items": plain(rows)})
        before = server.scorer.model.looked_up()["book"], server.scorer.model.seconds.network
        server.scorer.swap(snapshot(trained, second))
        eventually(lambda: server.scorer.model.step == second)
        server.score({"items": plain(rows)})
        after = server.scorer.model.looked_up()["book"], server.scorer.model.seconds.network
        assert after[0] == (2 * before[0][0], 2 * before[0][1])
        assert after[1] > before[1]
