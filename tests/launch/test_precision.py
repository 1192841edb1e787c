"""Runs of several processes whose networks compute in 16 bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from tests.launch.runs import frame, make_recipe
from tests.support.clusters import SERVERS
from tests.support.snapshots import saved

pytestmark = pytest.mark.cluster
PLACES = [
    [*SERVERS, "cluster.shards=2", "cluster.embedding_workers=2"],
    ["cluster.exchange=collective", *SERVERS[1:]],
]


@pytest.mark.parametrize(
    "place",
    [pytest.param(PLACES[0], marks=pytest.mark.slow), PLACES[1]],
    ids=["servers", "collective"],
)
def test_all_workers_compute_in_bfloat16_and_so_does_the_model(tmp_path: Path, place: list[str]) -> None:
    path = make_recipe(tmp_path, rows=frame(1501))
    settings = [*place, "training.mode=sync", "cluster.workers=2", "data.batch_size=50"]
    short, wide = (
        launch.train(load(path, [*settings, f"dense.precision={precision}"]), str(tmp_path / precision))
        for precision in ("bfloat16", "float32")
    )
    assert saved(tmp_path / "bfloat16") != saved(tmp_path / "float32")
    assert short.result.refused == 0
    assert short.test["auc"] == pytest.approx(wide.test["auc"], abs=0.01)
    again = launch.evaluate(short.folder)
    assert again["logloss"] == pytest.approx(short.test["logloss"], abs=1e-7)
