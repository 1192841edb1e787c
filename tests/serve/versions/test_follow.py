"""A server that follows a run: new snapshots are served, bad ones are not, no answer is of two steps."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from satrap.launch.folder.run_folder import RunFolder
from satrap.serve.scoring.model import ServedModel
from satrap.serve.versions import overlay
from satrap.serve.versions.follow import Follower
from satrap.serve.versions.update import Update
from tests.serve.followed import Appearing, eventually, expected, snapshot, steps
from tests.serve.requests import plain
from tests.serve.served import served
from tests.support.clients import Clients


class Followed:
    """What clients were answered while a server followed a run, and what each step should answer."""

    def __init__(self, snapshots: RunFolder, rows: pd.DataFrame, *, known: bool) -> None:
        self.wanted = expected(snapshots, rows)
        differ = [np.abs(a - b).max() for a, b in pairwise(self.wanted.values())]
        assert min(differ) > 1e-4  # a mixture would be noticed
        series = Appearing(str(snapshots.checkpoints))
        load = lambda step: snapshot(snapshots, step, known=known)  # noqa: E731
        with (
            served(load(min(self.wanted))) as server,
            Clients(server.address, {"items": plain(rows)}) as clients,
            Follower(series, load, server.scorer, notice=pytest.fail) as follower,
        ):
            self.statistics = follower.statistics
            for step in list(self.wanted)[1:]:
                series.newest = step
                eventually(lambda step=step: server.scorer.model.step == step)  # type: ignore[misc]
                clients.some_more()
        self.steps = {step for step, _ in clients.answers}
        self.mixed = clients.mixed(self.wanted)


@pytest.mark.parametrize("known", [False, True])
def test_each_answer_is_of_the_step_it_names_and_steps_never_fall(
    known: bool, snapshots: RunFolder, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots are loaded as a whole, or, if the served one is known, by the rows that changed."""
    monkeypatch.setattr(overlay, "FOLDED_ROWS", 3)  # so that there are many batches while rows are written
    found = Followed(snapshots, rows, known=known)
    assert found.steps == found.wanted.keys()
    assert found.mixed == 0
    assert found.statistics.updates == len(found.wanted) - 1
    assert found.statistics.reloads == (0 if known else found.statistics.updates)


def test_rows_that_are_simply_loaded_would_be_noticed(
    snapshots: RunFolder, rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test before can fail: here the rows of an update are written under the eyes of the clients."""

    def written(self: Follower, model: ServedModel, update: Update) -> None:
        while update.overlay.fold():
            time.sleep(0.005)
        model._predictor.network, model.step, model.version = update.network, update.step, update.version

    monkeypatch.setattr(Follower, "_apply", written)
    monkeypatch.setattr(overlay, "FOLDED_ROWS", 3)
    assert Followed(snapshots, rows, known=True).mixed > 0


def test_a_step_that_is_not_served_any_more_is_not_answered_by_another(
    snapshots: RunFolder, rows: pd.DataFrame
) -> None:
    first, second, *_ = steps(snapshots)
    with served(snapshot(snapshots, first)) as server:
        request = {"items": plain(rows), "step": first}
        assert server.score(request)[0] == 200
        server.scorer.swap(snapshot(snapshots, second))
        eventually(lambda: server.scorer.model.step == second)
        status, answer = server.score(request)
        assert (status, answer["error"]["what"]) == (404, f"step {first} is not served")


def test_a_damaged_snapshot_is_refused_by_name_and_the_next_one_served(
    snapshots: RunFolder, rows: pd.DataFrame
) -> None:
    series = Appearing(str(snapshots.checkpoints))
    first, second, third, _ = steps(snapshots)
    [file] = Path(series.place(second)).glob("data-*/table-000*.arrow")
    original = file.read_bytes()
    file.write_bytes(original[:-9] + bytes([original[-9] ^ 1]) + original[-8:])
    notices: list[str] = []
    try:
        with served(snapshot(snapshots, first)) as server:
            load = lambda step: snapshot(snapshots, step)  # noqa: E731
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
                eventually(lambda: follower.statistics.updates == 1)
    finally:
        file.write_bytes(original)


def test_whatever_goes_wrong_with_a_version_the_next_one_is_tried(
    snapshots: RunFolder, rows: pd.DataFrame
) -> None:
    first, second, third, _ = steps(snapshots)
    series, notices = Appearing(str(snapshots.checkpoints)), list[str]()

    def load(step: int) -> ServedModel:
        if step == second:
            raise RuntimeError("by surprise")
        return snapshot(snapshots, step)

    with (
        served(snapshot(snapshots, first)) as server,
        Follower(series, load, server.scorer, notice=notices.append) as follower,
    ):
        series.newest = second
        eventually(lambda: follower.statistics.refused == 1)
        assert "by surprise" in notices[0]
        series.newest = third
        eventually(lambda: server.scorer.model.step == third)
        assert server.score({"items": plain(rows)})[1]["step"] == third


def test_another_schema_is_refused(snapshots: RunFolder, rows: pd.DataFrame) -> None:
    first, second, *_ = steps(snapshots)
    with served(snapshot(snapshots, first)) as server:
        other = snapshot(snapshots, second)
        other.columns.append("more")
        series, notices = Appearing(str(snapshots.checkpoints)), list[str]()
        with Follower(series, lambda _: other, server.scorer, notice=notices.append) as follower:
            series.newest = second
            eventually(lambda: follower.statistics.refused == 1)
        assert "another schema" in notices[0]
        assert server.score({"items": plain(rows)})[1]["step"] == first


def test_counters_go_on_after_a_swap(snapshots: RunFolder, rows: pd.DataFrame) -> None:
    first, second, *_ = steps(snapshots)
    with served(snapshot(snapshots, first)) as server:
        server.score({"items": plain(rows)})
        before = server.scorer.model.looked_up()["book"], server.scorer.model.seconds.network
        server.scorer.swap(snapshot(snapshots, second))
        eventually(lambda: server.scorer.model.step == second)
        server.score({"items": plain(rows)})
        after = server.scorer.model.looked_up()["book"], server.scorer.model.seconds.network
        assert after[0] == (2 * before[0][0], 2 * before[0][1])
        assert after[1] > before[1]
