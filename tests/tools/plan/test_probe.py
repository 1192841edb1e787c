"""Short real runs: their processor time is there, adds up, and belongs to who did the work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from satrap.errors import ConfigError, ExchangeError
from satrap.tools.plan import probe as module
from satrap.tools.plan.probe import probe
from tests.launch.runs import make_recipe

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.cluster
def test_a_run_of_two_workers_and_two_shards_is_measured(tmp_path: Path) -> None:
    settings = ["cluster.exchange=servers", "cluster.workers=2", "cluster.shards=2", "training.mode=sync"]
    found = probe(make_recipe(tmp_path), [*settings, "data.shuffle=false"], 10)
    assert (found.workers, found.holders) == (2, 2)
    assert min(found.reader, found.main, found.exchange, found.shards) > 0
    assert found.cpu <= found.busy * found.seconds * 1.2
    assert found.values >= found.rows > 0
    assert found.sent > 8 * found.rows


@pytest.mark.cluster
def test_a_process_that_ends_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ExchangeError, match="has ended"):
        probe(make_recipe(tmp_path), ["cluster.exchange=servers"], 10, way=lambda _: "127.0.0.1:1")


def test_other_systems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCHEDSTAT", tmp_path / "none")
    with pytest.raises(ConfigError, match="CPU time of threads"):
        probe(make_recipe(tmp_path), [], 10)


def test_a_thread_that_has_ended_has_no_seconds() -> None:
    """It may end between the look at all threads and the look at it."""
    own = Path("/proc/self/task")
    found = module._cpu([own / "0", *own.iterdir()])
    assert 0 < found < 1e6
