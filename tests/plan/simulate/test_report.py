"""What simulations say, as text and as a page."""

from __future__ import annotations

import pytest

from satrap.plan.simulate.availability import Deaths, survive
from satrap.plan.simulate.cluster import simulate
from satrap.plan.simulate.costs import Costs
from satrap.plan.simulate.report import AS_ASKED, Simulated, what_if
from tests.plan.simulate.runs import calibration
from tests.plan.simulate.test_cluster import setup


@pytest.fixture(scope="module")
def found() -> Simulated:
    costs, asked = (
        Costs(calibration()),
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
