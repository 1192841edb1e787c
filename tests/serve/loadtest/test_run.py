"""A load test of a server: every answer is compared, and what a wrong server does is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from satrap.errors import ConfigError
from satrap.launch.folder.run_folder import RunFolder
from satrap.rpc import create_key
from satrap.serve.loadtest.run import LoadTest
from satrap.serve.scoring.model import ServedModel
from satrap.serve.versions.follow import Follower
from tests.serve.followed import Appearing, snapshot, steps
from tests.serve.served import Served, frame, model_of, served


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("load") / "rows.parquet"
    frame(200, seed=3).to_parquet(place)
    return str(place)


def load(server: Served, source: str, **more: object) -> LoadTest:
    host, port = server.address
    chosen = {"rate": 80, "seconds": 0.5, "items": 7, **more}
    return LoadTest(url=f"{host}:{port}", sources=[source], **chosen)  # type: ignore[arg-type]


def test_answers_of_several_steps_are_all_right(snapshots: RunFolder, source: str) -> None:
    first, second, third, _ = steps(snapshots)
    series = Appearing(str(snapshots.checkpoints))
    make = lambda step: snapshot(snapshots, step, known=True)  # noqa: E731
    with (
        served(make(first)) as server,
        Follower(series, make, server.scorer, notice=pytest.fail) as follower,
    ):
        server.application.versions.follower = follower
        series.newest = second
        report = load(server, source, run=snapshots.path, context=["user"])(print)
        assert report.right, report.lines()
        assert set(report.steps) <= {first, second}
        assert report.comparison is not None
        assert report.comparison.right == len(report.outcomes) > 0
        assert report.stages().keys() == {"parse", "wait", "encode", "lookup", "network", "write"}
        series.newest = third
        follower.rollback(third)
        follower.rollback(first)
        assert load(server, source)().rollbacks == 0, "those before do not count"


def test_a_server_that_answers_with_another_model_is_found(
    run: RunFolder, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = ServedModel.score
    monkeypatch.setattr(ServedModel, "score", lambda self, batch: score(self, batch) + np.float32(1e-5))
    with served(model_of(run)) as server:
        report = load(server, source, run=run.path)()
        assert not report.right
        assert report.comparison is not None
        assert report.comparison.wrong == len(report.outcomes) > 0
        assert load(server, source, run=run.path, tolerance=1e-4)().right
        assert load(server, source)().right, "without a run, scores are not compared"


def test_keys_and_limits_are_the_servers(run: RunFolder, source: str, tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    secret = (tmp_path / "key").read_bytes().strip()
    with served(model_of(run), secret=secret) as server:
        with pytest.raises(ConfigError, match="the request has no key"):
            load(server, source)()
        assert load(server, source, key=tmp_path / "key")().right
