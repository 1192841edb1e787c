"""The plan of a cluster as text."""

from __future__ import annotations

import json

from satrap.plan.cluster import plan_cluster
from satrap.plan.cluster.report import report
from tests.plan.cluster.test_plan import CATALOG, demand


def test_what_does_not_fit_is_said_with_the_change_that_would_fit() -> None:
    found = plan_cluster(demand(), CATALOG, hosts={"a/small": 2})
    assert not found.fits
    said = report(found)
    assert "DOES NOT FIT: the rows take 857 GiB, 422 GiB more than 435 GiB" in said
    assert "5.75 bytes a parameter must become 2.92" in said
    assert json.loads(json.dumps(found.to_dict()))["fits"] is False


def test_time_and_price_of_the_samples_that_are_asked_for() -> None:
    found = plan_cluster(demand(), CATALOG, samples=1e12)
    assert found.hours is not None
    said = report(found)
    assert f"1e+12 samples: {found.hours:,.1f} h, {found.hours * 28:,.0f} $" in said
    assert "planned: 4 x a/small + 1 x a/gpus, 28 $/h" in said
    assert "samples:" not in report(plan_cluster(demand(), CATALOG))
