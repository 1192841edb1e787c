"""Hosts for a model: what fits, what limits the speed, what it costs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satrap.errors import ConfigError
from satrap.plan import Workload
from satrap.tools.plan.cluster import Demand, plan_cluster, read
from satrap.tools.plan.cluster.machines import Catalog, Machine
from satrap.tools.plan.cluster.plan import FILLED, ClusterPlan
from tests.plan.loads import load
from tests.tools.plan.cluster.catalog import BIG, CATALOG, ELSEWHERE, GPUS, SMALL, demand


def test_the_cheapest_hosts_that_hold_the_rows_and_workers_of_the_same_cloud() -> None:
    found = plan_cluster(demand(), CATALOG)  # 1e10 rows, 920 GB
    assert found.choices == ((SMALL, 4), (BIG, 1))
    assert found.hosts == ((SMALL, 4), (GPUS, 1))
    assert plan_cluster(demand(), CATALOG, hosts={"b/gpus": 2}).hosts == ((SMALL, 4), (ELSEWHERE, 2))
    assert (found.fits, found.price) == (True, 28.0)
    assert found.snapshot_seconds == pytest.approx(9.2e11 / 2e9 / 4)


@given(st.floats(1e6, 1e16))
def test_one_host_fewer_would_not_hold_the_rows(parameters: float) -> None:
    asked = demand(parameters)
    for kind, count in plan_cluster(asked, CATALOG).choices:
        assert asked.bytes <= count * kind.bytes * FILLED * (1 + 1e-9)
        assert asked.bytes > (count - 1) * kind.bytes * FILLED * (1 - 1e-9)


def test_the_speed_is_that_of_the_scarcest_resource() -> None:
    found = plan_cluster(demand(), CATALOG, hosts={"a/small": 4, "a/gpus": 2})
    wire = 2 * (8 + 32 + 32)
    assert dict(found.limits) == pytest.approx(
        {
            "processors of the shards": 40 / (2 * 0.55e-6),
            "network of the shards": 4e9 / wire,
            "network of the workers": 2e10 / wire,
            "ids and rows in the workers": 16 / (2 * 0.55e-6),
            "the network on the GPUs": 0.3 * 1600e12 / 3e6,
        }
    )
    assert found.bottleneck == "ids and rows in the workers"
    later = plan_cluster(demand(), CATALOG, hosts={"a/small": 4, "a/gpus": 2}, samples=1e12)
    assert later.hours == pytest.approx(1e12 / later.samples_per_second / 3600)


def test_embedding_workers_take_the_ids_and_rows_from_the_workers() -> None:
    table = load("t", dim=16, weight_bytes=64, state_bytes=4, rows=1000, distinct=2000, pooled_features=3)
    asked = Demand.of(Workload((table,), batch_size=1000, steps=1), 1.6e11, 1e6, 1000)
    helpers = Machine("a/cpu", "cpu", memory=64, cores=30, network=8, price=1.0)
    catalog = Catalog({kind.name: kind for kind in (BIG, GPUS, helpers)}, "a test")
    found = plan_cluster(asked, catalog, hosts={"a/big": 1, "a/gpus": 2, "a/cpu": 5})
    assert asked.vectors == 3 * (32 + 32)
    assert "ids and rows in the workers" not in found.limits
    assert found.limits["ids and rows in the embedding workers"] == pytest.approx(150 / (2 * 0.55e-6))
    assert found.limits["network of the embedding workers"] == pytest.approx(5e9 / (2 * (8 + 32 + 32)))
    assert found.limits["network of the workers"] == pytest.approx(2e10 / asked.vectors)


def test_limits_and_hosts_at_the_brink() -> None:
    """85 % of 20 GiB are 17 GiB: 17 x 2^24 rows of 64 bytes, or 17 x 2^26 weights of 16 bytes with Adam."""
    table = load("t", dim=9, weight_bytes=36, state_bytes=4, rows=1000, distinct=2000)
    rows = Machine("a/rows", "shards", memory=20, cores=1, network=8, price=1.0)
    plain = Machine("a/plain", "workers", memory=20, cores=8, network=8, price=2.0)
    catalog = Catalog({kind.name: kind for kind in (rows, plain)}, "a test")

    def planned(more: int, dense: int) -> ClusterPlan:
        parameters = 9.0 * (17 * 2**24 + more)
        asked = Demand.of(Workload((table,), batch_size=1000, steps=1), parameters, 0.0, dense)
        return plan_cluster(asked, catalog, hosts={"a/rows": 1, "a/plain": 3}, budget=7.0)

    assert [planned(more, 17 * 2**26).fits for more in (0, 1)] == [True, False]
    with pytest.raises(ConfigError, match="the network and its optimizer need 17 GiB, more than a a/plain"):
        planned(0, 17 * 2**26 + 1)
    limits = planned(0, 0).limits  # one thread of each worker without a GPU; nothing for the GPUs
    seconds = 2 * 0.55e-6 * (11 + 0.7 * 9) / (11 + 0.7 * 16)
    assert limits["ids and rows in the workers"] == pytest.approx(3 / seconds)
    assert len(limits) == 4
    assert len(plan_cluster(replace(demand(), forward_flop=0.0), CATALOG).limits) == 4


def test_impossible_hosts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"machine 'a/smal' is unknown\n.*\n.*did you mean 'a/small'"):
        plan_cluster(demand(), CATALOG, hosts={"a/smal": 1})
    with pytest.raises(ConfigError, match=r"cost 28.00 \$/h, more than the budget of 27.00"):
        plan_cluster(demand(), CATALOG, budget=27)
    with pytest.raises(ConfigError, match="more than a a/gpus has"):
        plan_cluster(demand(dense=10**10), CATALOG)
    for role, kind in (("shards", GPUS), ("workers", BIG)):
        with pytest.raises(ConfigError, match=f"no machine has the role {role}"):
            plan_cluster(demand(), Catalog({kind.name: kind}, "a test"))


def test_persias_cluster_holds_its_100_trillion_parameters_in_two_bytes_but_not_in_four() -> None:
    """30 hosts of 12 TB; KDD 2022, section 6.4. Rows of 128 weights, so that state and index weigh little."""
    hosts = {"gcp/m2-ultramem-416": 30, "gcp/a2-highgpu-8g": 8, "gcp/c2-standard-30": 100}
    for width, fits in ((4, False), (2, True)):
        table = load("t", dim=128, weight_bytes=128 * width, state_bytes=4, rows=1000, distinct=2000)
        asked = Demand.of(Workload((table,), batch_size=1000, steps=1), 100e12, 1e6, 1000)
        found = plan_cluster(asked, read(), hosts=hosts)
        assert found.fits is fits
        assert math.isclose(found.price, 30 * 84.4 + 8 * 29.4 + 100 * 1.57)
