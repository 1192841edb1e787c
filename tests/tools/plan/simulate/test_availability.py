"""Hours with deaths, against renewal theory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from satrap.errors import ConfigError
from satrap.tools.plan.simulate.availability import Deaths, survive

HOURS = 20_000.0


def test_every_second_is_of_one_kind() -> None:
    deaths = Deaths(10, 5, 50.0, restart=100.0, snapshot_every=900.0, snapshot_pause=7.0)
    found = survive(deaths, 1000.0)
    assert found.trained + found.repeated + found.down + found.paused == pytest.approx(3.6e6)
    assert found == survive(deaths, 1000.0, 1) != survive(deaths, 1000.0, 2)
    for kind, changed in (("down", {"mean_hours": 1e-6}), ("paused", {"snapshot_every": 1e-3})):
        long = replace(deaths, restart=7200.0, snapshot_pause=7200.0, **changed)
        cut = survive(replace(long, journal=True), 1.0)  # the hour ends in the wait
        assert getattr(cut, kind) == pytest.approx(3600, abs=1)
        assert cut.trained + cut.repeated + cut.down + cut.paused == pytest.approx(3600)


def test_shards_that_come_back_alone_cost_their_restart() -> None:
    found = survive(Deaths(1, 10**6, 1e7, restart=600.0, journal=True), HOURS)
    assert found.share == pytest.approx(36_000 / 36_600, rel=0.01)  # mean life of the run: 10 hours
    assert found.deaths == pytest.approx(HOURS / (10 + 1 / 6), rel=0.05)


def test_a_death_costs_half_the_time_between_snapshots() -> None:
    deaths = Deaths(100, 0, 1000.0, restart=0.0, snapshot_every=1800.0, snapshot_pause=0.0)
    found = survive(deaths, HOURS)
    assert found.repeated / found.deaths == pytest.approx(900, rel=0.06)
    none = survive(replace(deaths, mean_hours=1e12, snapshot_pause=200.0), HOURS)
    assert (none.deaths, none.repeated) == (0, 0)
    assert none.share == pytest.approx(0.9, rel=0.001)


@pytest.mark.parametrize("shards", [0, 2])
def test_the_first_death_comes_when_the_first_of_all_processes_dies(shards: int) -> None:
    """After it, the restart takes the rest of the time."""
    found = survive(Deaths(2, shards, 3.0, restart=1e12), 1e6, seed=5)
    alone = np.random.default_rng(5).exponential(3600.0 * 3.0 / (2 + shards))
    assert (found.repeated, found.trained, found.deaths) == (pytest.approx(alone), 0, 1)
    assert found.down == pytest.approx(3.6e9 - alone)


def test_impossible_numbers_are_refused() -> None:
    deaths = Deaths(1, 0, 1.0, snapshot_pause=0.0)
    assert (deaths.restart, deaths.snapshot_every, deaths.journal) == (60, 0, False)
    for name, value in {"mean_hours": 0.0, "workers": 0, "shards": -1}.items():
        with pytest.raises(ConfigError, match="must be above 0"):
            replace(deaths, **{name: value})
    for name in ("restart", "snapshot_every", "snapshot_pause"):
        with pytest.raises(ConfigError, match="must be >= 0"):
            replace(deaths, **{name: -0.5})
