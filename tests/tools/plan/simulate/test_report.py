"""What simulations say, as text and as a page."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from satrap.plan.result import columns
from satrap.tools.plan.simulate.availability import Deaths, Survived, survive
from satrap.tools.plan.simulate.cluster import simulate
from satrap.tools.plan.simulate.costs import MachineCosts
from satrap.tools.plan.simulate.report import AS_ASKED, Simulated, what_if
from satrap.tools.plan.simulate.setup import SimulationResult
from satrap.tools.report_page.element import Html
from tests.support.pages import rows
from tests.tools.plan.simulate.runs import calibration
from tests.tools.plan.simulate.setups import setup


@pytest.fixture(scope="module")
def found() -> Simulated:
    costs, asked = (
        MachineCosts(calibration()),
        setup(mode="hybrid", ahead=4, workers=2, shards=2, together=False, steps=50),
    )
    setups = {AS_ASKED: asked, **what_if(asked)}
    outcomes = {name: simulate(one, costs.work(one, sent=1e4, received=1e4)) for name, one in setups.items()}
    return Simulated("made", outcomes, costs, "made up", survive(Deaths(2, 2, 10.0), 100.0))


def test_what_if_changes_one_thing_each(found: Simulated) -> None:
    names = list(found.outcomes)
    assert names[:4] == [AS_ASKED, "sync", "async", "collective, sync"]
    assert "a shard away for 1 s" in names
    assert any("moved rows" in name for name in names)
    assert {"1 workers, 1 shards", "4 workers, 4 shards"} <= set(names)
    assert [*what_if(setup("local"))] == ["hybrid"]


def test_the_text_has_a_line_for_each(found: Simulated) -> None:
    lines = found.report().splitlines()
    assert lines[0] == "servers, hybrid 4 ahead: 2 workers x 100 samples, 2 shards"
    for name, one in found.outcomes.items():
        [line] = [line for line in lines if line.startswith(f"{name}  ")]
        assert f"{one.samples_per_second:,.0f}" in line
    assert any("100 hours" in line for line in lines)


def outcome(**changed: Any) -> SimulationResult:
    """100 steps of 2 workers with 100 samples in 2 seconds, evenly spread figures of each step."""
    known = {"mode": "hybrid", "ahead": 4, "workers": 2, "shards": 2, "together": False, "background": 1e6}
    return SimulationResult(
        setup(**known | changed),
        2.0,
        100,
        np.linspace(0.0, 0.1, 101),
        np.linspace(0.0, 0.2, 101),
        Counter({0: 10, 3: 30}),
        Counter({0: 20, 5: 20}),
        np.array([0.25, 0.5]),
        sent=3e4,
        received=5e4,
    )


@pytest.fixture(scope="module")
def by_hand(found: Simulated) -> Simulated:
    bare = replace(
        outcome(exchange="collective", mode="sync", ahead=0, together=True),
        own=Counter(),
        others=Counter(),
        shard_busy=np.zeros(0),
    )
    hours = Survived(100.0, trained=1.8e5, repeated=7200.0, down=1800.0, paused=900.0, deaths=3)
    return replace(found, outcomes={AS_ASKED: outcome(), "collective": bare}, survived=hours)


def test_every_figure_is_in_the_text_and_in_the_plain_form(by_hand: Simulated) -> None:
    head = ["", "samples/s", "ms/step", "p99", "p99 lookup", "own", "others", "busiest shard"]
    same = ["10,000", "20.00", "99.00", "198.00"]
    table = columns([head, [AS_ASKED, *same, "3", "2.5", "50%"], ["collective", *same, "0", "0.0", "-"]])
    assert by_hand.report().splitlines()[:-3] == [
        "servers, hybrid 4 ahead: 2 workers x 100 samples, 2 shards",
        "",
        *table,
        "",
        "100 hours: 3 deaths; 50.0% of the time is useful, 2.00 h repeated, 0.50 h down, 0.25 h in snapshots",
        "",
        "  64 cores per host, a host each, 1.25 GB/s; 200 steps simulated, the first fifth ignored",
    ]
    unasked = replace(by_hand, outcomes={AS_ASKED: by_hand.outcomes["collective"]}, survived=None).report()
    assert unasked.splitlines()[0] == "collective, sync: 2 workers x 100 samples"
    assert unasked.splitlines()[4:6] == [
        "",
        "  64 cores per host, all on one host; 200 steps simulated, the first fifth ignored",
    ]
    plain = by_hand.to_dict()
    assert plain["survived"] == {
        "hours": 100.0,
        "deaths": 3,
        "share_trained": 0.5,
        "trained_seconds": 1.8e5,
        "repeated_seconds": 7200.0,
        "down_seconds": 1800.0,
        "paused_seconds": 900.0,
    }
    one, other = plain["outcomes"].values()
    quarters = {"p50": 0.05, "p90": 0.09, "p99": 0.099, "p100": 0.1}
    assert one["step_seconds"] == pytest.approx({"mean": 0.02, **quarters})
    assert one["lookup_seconds"] == pytest.approx({mark: 2 * v for mark, v in quarters.items()})
    assert one["shard_busy"] == {"mean": 0.375, "max": 0.5}
    assert one["staleness"] == {"own": {0: 10, 3: 30}, "others": {0: 20, 5: 20}}
    assert other["shard_busy"] == {"mean": 0.0, "max": 0.0}
    assert (plain["recipe"], plain["origin"], plain["costs"]["slowdown"]) == ("made", "made up", 1.0)
    assert plain["costs"]["waits"] == by_hand.costs.waits
    assert replace(by_hand, survived=None).to_dict()["survived"] is None


def test_every_figure_is_on_the_page(by_hand: Simulated) -> None:
    """The plot of a chart is 368 wide and 200 high, and 6 % of it are above the highest point."""
    page = by_hand.page()
    traffic = rows([Html(page)])[-3:]
    assert traffic == [
        ["MB/s of all workers", "ids and gradients", "rows", "snapshots, moved rows"],
        [AS_ASKED, "3.0", "5.0", "2.0"],
        ["collective", "3.0", "5.0", "-"],
    ]
    # 3 of 8 updates miss none, as many 3, the rest 5
    assert (
        'points="72.0,210.0 72.0,139.2 292.8,68.5 440.0,21.3" class="line" style="stroke: var(--c0)"' in page
    )
    quantiles = [line.split() for line in re.findall('points="([^"]*)"', page) if line.count(",") == 51]
    assert [(line[0], line[25], line[50]) for line in quantiles] == [
        ("72.0,210.0", "256.0,115.7", "440.0,21.3")
    ] * 4
    assert (">100</text>" in page, ">200</text>" in page) == (True, True)  # ms
    titles = re.findall("<title>([^<]*: [^<]*)</title>", page)
    assert titles == ["satrap plan: made", "as asked: 10000", "collective: 10000", "as asked: 0.5"]
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings[-2:] == ["Deaths and snapshots", "Notes"]
    assert "Deaths and snapshots" not in replace(by_hand, survived=None).page()
    assert page.count("<li>") == 4


def test_what_if_knows_what_there_is() -> None:
    assert [*what_if(setup())] == ["hybrid", "async", "a shard away for 1 s"]
    assert what_if(setup())["hybrid"] == setup(mode="hybrid", ahead=4)
    assert [*what_if(setup("collective", workers=2))] == [
        "hybrid",
        "1 workers, 1 shards",
        "4 workers, 2 shards",
    ]
    asked = setup(mode="hybrid", ahead=2, workers=4, shards=3, together=False)
    assert what_if(asked) == {
        "sync": replace(asked, mode="sync", ahead=0),
        "async": replace(asked, mode="async"),
        "collective, sync": replace(asked, exchange="collective", mode="sync", ahead=0),
        "worker 0 takes 2 x as long": replace(asked, straggler=2.0),
        "a shard away for 1 s": replace(asked, lost=1.0),
        "a shard with 4 x the work": replace(asked, hot=4.0),
        "snapshots or moved rows take 50% of shards' networks": replace(asked, background=0.625e9),
        "2 workers, 2 shards": replace(asked, workers=2, shards=2),
        "8 workers, 6 shards": replace(asked, workers=8, shards=6),
    }


def test_the_page_needs_no_network_and_has_every_number(found: Simulated) -> None:
    page = found.page()
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "<script" not in page
    for heading in ("Throughput", "Tail latencies", "Staleness", "Shards", "Traffic", "Deaths and snapshots"):
        assert f"<h2>{heading}</h2>" in page
    assert f"{found.outcomes['sync'].samples_per_second:,.0f}" in page
    plain = found.to_dict()
    assert plain["outcomes"][AS_ASKED]["samples_per_second"] > 0
    assert plain["survived"]["deaths"] == found.survived.deaths if found.survived else False
