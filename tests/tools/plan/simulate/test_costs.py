"""Costs that are found again in the runs of a machine whose costs are known."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import nnls

from satrap.errors import ConfigError
from satrap.tools.plan.calibration import Case
from satrap.tools.plan.simulate.costs import Calibration, MachineCosts, MeasuredRun, _slowdown, nonnegative
from satrap.tools.plan.simulate.measured import Measured
from satrap.tools.plan.simulate.setup import Setup
from tests.tools.plan.simulate.runs import HOP, SUM, TALK, TURN, calibration, run
from tests.tools.plan.simulate.setups import setup


def test_factors_are_those_of_nonnegative_least_squares() -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        x, y = random.random((7, 3)), random.random(7) + 0.1
        expected, _ = nnls(x / y[:, None], np.ones(7))
        assert nonnegative(x, y) == pytest.approx(expected, abs=1e-9)
    assert nonnegative(random.random((4, 2)), np.zeros(4)).tolist() == [0, 0]


@pytest.fixture(scope="module")
def costs() -> MachineCosts:
    return MachineCosts(calibration())


def test_waits_are_found_again(costs: MachineCosts) -> None:
    expected = {"turn": TURN, "hop": HOP, "sum": SUM, "talk": TALK}
    for name, seconds in expected.items():
        assert costs.waits[name] == pytest.approx(seconds, abs=1e-4), name
    assert costs.slowdown == 1


@pytest.mark.parametrize(
    "case",
    [
        Case("servers"),
        Case("servers", "hybrid", 4, shards=2, batch=1.5),
        Case("servers", "hybrid", 1, workers=2, shards=2),
        Case("servers", workers=2, batch=1.5, dim=1.5),
        Case("collective", workers=2),
    ],
)
def test_runs_that_were_not_measured_are_predicted(costs: MachineCosts, case: Case) -> None:
    made = run(case)
    assert costs.predict(made, steps=60).step_seconds == pytest.approx(made.measured.seconds, rel=0.05)


def test_a_slowdown_is_told_from_runs_on_all_cores() -> None:
    made = calibration()
    slower = [
        replace(r, measured=replace(r.measured, main=1.5 * r.measured.main, busy=2.0)) if r.copies > 1 else r
        for r in made.runs
    ]
    alone = [
        replace(r, measured=replace(r.measured, busy=1.0)) if r.exchange == "local" and r.copies == 1 else r
        for r in slower
    ]
    m = made.runs[0].measured
    assert MachineCosts(replace(made, runs=alone)).slowdown == pytest.approx((m.cpu + 0.5 * m.main) / m.cpu)


def local(cpu: float, busy: float, copies: int = 1) -> MeasuredRun:
    """A run whose step takes a second, `cpu` of it in the main thread."""
    figures = dict.fromkeys((field.name for field in fields(Measured)), 0.0)
    known = {"workers": 1, "holders": 0, "samples": 7.0, "seconds": 1.0, "main": cpu, "busy": busy}
    return MeasuredRun("local", "hybrid", 3, Measured(**{**figures, **known}), copies, delay=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("alone", "together", "cores", "expected"),
    [
        ((1.0, 1.0), (1.5, 2.0), 2, 1.5),
        ((1.0, 1.0), (1.5, 3.0), 2, 1.5),  # no more than all are busy
        ((1.0, 0.5), (1.5, 3.0), 3, 1.5),
        ((1.0, 1.0), (1.25, 2.0), 3, 1.5),  # half of the other cores
        ((1.0, 1.0), (1.5, 1.25), 2, 1.0),  # a difference that cannot be told
        ((1.0, 1.0), (1.5, 1.375), 2, 2.0),  # the most that is believed
        ((1.0, 1.0), (0.5, 2.0), 2, 1.0),
        ((1.0, 1.5), (2.0, 2.0), 2, 1.0),  # other programs kept the cores busy both times
        ((1.0, 1.25), (1.25, 2.0), 2, 1 + 0.25 / (1 - 1.25 * 0.25)),
        ((1.0, 1.0), (1.5, 2.0), 1, 1.0),
    ],
)
def test_a_slowdown_by_hand(
    alone: tuple[float, float], together: tuple[float, float], cores: int, expected: float
) -> None:
    runs = [local(*alone), local(*together, copies=2)]
    assert _slowdown(runs, cores) == pytest.approx(expected)
    assert _slowdown(runs[:1], cores) == _slowdown(runs[1:], cores) == 1.0


def test_shares_of_the_exchange_and_of_the_shards(costs: MachineCosts) -> None:
    work = costs.work(setup(mode="hybrid", ahead=2), sent=3.0, received=5.0)
    exchange, shard = work.send + work.receive + work.push, work.lookup + work.update
    assert [work.send / exchange, work.receive / exchange, work.lookup / shard] == pytest.approx(
        [0.2, 0.35, 0.6]
    )
    # the machine's own numbers of 400 rows with 6,400 numbers in one shard
    assert exchange == pytest.approx(2e-4 + 400 * 2e-8 + 6400 * 4e-10)
    assert shard == pytest.approx(1e-4 + 400 * 3e-8 + 6400 * 5e-10)
    assert (work.sent, work.received, work.turn) == (3.0, 5.0, costs.waits["turn"])
    several = costs.work(setup(mode="hybrid", ahead=2, workers=2))
    assert several.reader - work.reader == pytest.approx(1e-4)
    assert several.main - work.main == pytest.approx(2e-4)
    assert (several.meet, work.hop) == (costs.waits["sum"], costs.waits["hop"])
    assert costs.work(setup("collective", workers=2)).meet == costs.waits["talk"]
    assert costs.predict(run(Case("servers"))).setup.steps == 200


def test_what_a_run_was_of() -> None:
    made = local(0.5, 3.0, copies=2)
    assert made.others == 2.0
    assert local(0.5, 0.25).others == 0.0
    assert made.setup(4.0) == Setup("local", "hybrid", 3, 1, 1, 7.0, 0.0, 0.0, 0.0, 4.0, latency=0.5)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, made = tmp_path / "calibration.json", calibration()
    made.write(path)
    assert Calibration.read(path) == made
    assert made.disturbed == pytest.approx(0, abs=0.01)
    plain = json.loads(path.read_text())
    assert (plain["version"], plain["cores"], plain["recipe"]) == (1, 2, "made.yaml")
    for wrong in ("", "[]", json.dumps({**plain, "version": 9}), json.dumps({**plain, "runs": [{}]})):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match="calibration"):
            Calibration.read(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        Calibration.read(tmp_path / "none")


def test_missing_runs_are_refused() -> None:
    made = calibration()
    with pytest.raises(ConfigError, match="no run of collective"):
        MachineCosts(replace(made, runs=[r for r in made.runs if r.exchange != "collective"]))
