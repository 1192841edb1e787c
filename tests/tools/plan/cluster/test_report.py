"""The plan of a cluster as text."""

from __future__ import annotations

import json

from satrap.plan import Workload
from satrap.tools.plan.cluster import Demand, plan_cluster
from satrap.tools.plan.cluster.report import report
from tests.plan.loads import load
from tests.tools.plan.cluster.catalog import CATALOG, demand

TEXT = """\
2.8e+12 parameters in 2 tables

table   dim             rows  weights    state    index     total
wide    8    300,000,000,000  4.4 TiB  1.1 TiB  6.5 TiB  12.0 TiB
narrow  4    100,000,000,000  745 GiB  373 GiB  2.2 TiB   3.3 TiB
all 2        400,000,000,000  5.1 TiB  1.5 TiB  8.7 TiB  15.3 TiB

hosts for the rows  GiB each  number  $/h
a/small                  256      72  144
a/big                  1,024      18  180

planned: 2 x a/small + 1 x a/gpus, 24 $/h
DOES NOT FIT: the rows take 15.3 TiB, 14.9 TiB more than 435 GiB
what to do: reduce 6.00 bytes per parameter to 0.17 (embedding.dtype: bfloat16, row-wise state, \
a larger dim), use more hosts, or use embedding.tier on their disks

most samples/s, limited by
the network on the GPUs        1,250,000
ids and rows in the workers   37,652,646
processors of the shards      94,131,615
network of the shards         97,656,250
network of the workers       488,281,250

a full snapshot: 15.3 TiB, 70 min
1e+12 samples: 222.2 h, 5,333 $

"""


def test_what_does_not_fit_is_said_with_the_change_that_would_fit() -> None:
    found = plan_cluster(demand(), CATALOG, hosts={"a/small": 2})
    assert not found.fits
    said = report(found)
    assert "DOES NOT FIT: the rows take 857 GiB, 422 GiB more than 435 GiB" in said
    assert "reduce 5.75 bytes per parameter to 2.92" in said
    assert json.loads(json.dumps(found.to_dict()))["fits"] is False


def test_time_and_price_of_the_samples_that_are_asked_for() -> None:
    found = plan_cluster(demand(), CATALOG, samples=1e12)
    assert found.hours is not None
    said = report(found)
    assert f"1e+12 samples: {found.hours:,.1f} h, {found.hours * 28:,.0f} $" in said
    assert "planned: 4 x a/small + 1 x a/gpus, 28 $/h" in said
    assert "samples:" not in report(plan_cluster(demand(), CATALOG))


def test_the_whole_text() -> None:
    """The largest table comes first, of hosts the kind that costs least together, of limits the lowest."""
    narrow = load("narrow", dim=4, weight_bytes=8, state_bytes=4, rows=100, distinct=20)
    wide = load("wide", dim=8, weight_bytes=16, state_bytes=4, rows=300, distinct=500)
    asked = Demand.of(Workload((narrow, wide), batch_size=1000, steps=1), 2.8e12, 64e6, 10)
    found = plan_cluster(asked, CATALOG, hosts={"a/small": 2}, samples=1e12)
    text, _, notes = report(found).partition("  rows x (")
    assert text == TEXT
    assert len(notes.splitlines()) == 6
    assert found.to_dict()["flop_per_sample"] == 3 * 64e6


def test_the_ten_largest_tables_are_shown() -> None:
    tables = tuple(load(f"t{i}", rows=100 * i) for i in range(1, 13))
    lines = report(plan_cluster(Demand.of(Workload(tables, 1000, 1), 1e9, 1.0, 1), CATALOG)).splitlines()
    assert [line.split()[0] for line in lines[3:14]] == [*(f"t{i}" for i in range(12, 2, -1)), "all"]
    assert "the rows take " in "\n".join(lines)
    assert "DOES NOT FIT" not in "\n".join(lines)


def test_tables_that_cannot_grow_are_named() -> None:
    tables = (load("user"), load("open", rows=2, most=3), load("hour", rows=24, most=25))
    said = report(plan_cluster(Demand.of(Workload(tables, 1000, 1), 1e9, 1.0, 1), CATALOG))
    assert "tables at their maximum number of rows: open (3), hour (25)" in said
