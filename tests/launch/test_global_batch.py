"""Workers that share the batch of one process learn what it learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap import launch
from satrap.config import load
from tests.launch.runs import make_recipe

WIRE = ("cluster.wire.forward=float32", "cluster.wire.backward=float32", "cluster.workers=2")


@pytest.mark.cluster
@pytest.mark.parametrize("exchange", [pytest.param("servers", marks=pytest.mark.slow), "collective"])
def test_two_workers_take_the_steps_of_one_process(tmp_path: Path, exchange: str) -> None:
    path = make_recipe(tmp_path)
    same = ["training.mode=sync", "data.global_batch=true", "data.shuffle=false", "data.batch_size=64"]
    one = launch.train(load(path, same), str(tmp_path / "one"))
    two = launch.train(load(path, [*same, *WIRE, f"cluster.exchange={exchange}"]), str(tmp_path / "two"))
    assert two.result.steps == one.result.steps
    for mine, other in zip(one.result.history, two.result.history, strict=True):
        assert other == pytest.approx(mine, rel=1e-5)
    assert two.test == pytest.approx(one.test, rel=1e-5)
