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
from satrap.config import load
from satrap.launch.folder import RunFolder
from satrap.launch.scoring import load_predictor
from satrap.serve.follow import Follower
from satrap.serve.model import ServedModel
from satrap.train import Predictor
from tests.serve.requests import plain
from tests.serve.served import RECIPE, served


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


def snapshot(trained: RunFolder, step: int) -> ServedModel:
    place = Series(str(trained.checkpoints)).place(step)
    return ServedModel("books", load_predictor(trained, trained.recipe(), place))


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


def test_each_answer_is_of_the_step_it_names_and_steps_never_fall(
    trained: RunFolder, rows: pd.DataFrame
) -> None:
    wanted, request = expected(trained, rows), {"items": plain(rows)}
    differ = [np.abs(a - b).max() for a, b in pairwise(wanted.values())]
    assert min(differ) > 1e-4  # a mixture would be noticed
    series = Appearing(str(trained.checkpoints))
    answers: list[tuple[int, Any]] = []
    stopping = threading.Event()
    with served(snapshot(trained, min(wanted))) as server:

        def ask() -> None:
            while not stopping.is_set():
                status, answer = server.score(request)
                assert status == 200
                answers.append((answer["step"], answer["predictions"]["clicked_probability"]))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        load = lambda step: snapshot(trained, step)  # noqa: E731
        with Follower(series, load, server.scorer, notice=pytest.fail) as follower:
            for step in list(wanted)[1:]:
                series.newest = step
                eventually(lambda step=step: server.scorer.model.step == step)  # type: ignore[misc]
            assert follower.statistics.updates == len(wanted) - 1
        stopping.set()
        for thread in threads:
            thread.join()
    assert {step for step, _ in answers} == wanted.keys()
    for step, scores in answers:
        np.testing.assert_allclose(scores, wanted[step], rtol=1e-6, atol=1e-6)


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
