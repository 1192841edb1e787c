from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import ConfigError
from satrap.exchange.collective.placement import PLACEMENTS
from satrap.exchange.kernels import FLOAT32
from satrap.plan import PlacementCosts, Topology, WorkerRates, Workload, place
from tests.plan.loads import load, topologies, topology, workloads
from tests.support.examples import examples

FAST = dict.fromkeys([4, 64], WorkerRates(1e9, 1e9))


@settings(max_examples=examples(30), deadline=None)
@given(workloads(), topologies(), st.floats(1, 4))
def test_a_plan_fits_and_is_never_slower_than_one_placement_for_all(
    workload: Workload, workers: Topology, room: float
) -> None:
    spread = PlacementCosts(workload, workers).uniform("row_wise")
    workers = replace(workers, memory=spread.most_memory * room)
    plan = place(workload, workers)
    assert plan.cost.most_memory <= workers.memory
    for placement in PLACEMENTS:
        cost = PlacementCosts(workload, workers).uniform(placement)
        if cost.most_memory <= workers.memory:
            assert plan.cost.seconds <= cost.seconds
    again = place(workload, workers)
    assert (again.placements, again.cost.owners) == (plan.placements, plan.cost.owners)


@settings(max_examples=examples(20), deadline=None)
@given(workloads(3), topologies(), st.booleans())
def test_with_few_tables_nothing_is_faster(workload: Workload, workers: Topology, pooled: bool) -> None:
    costs, names = PlacementCosts(workload, workers, pooled=pooled), [table.name for table in workload.tables]
    every = (dict(zip(names, one, strict=True)) for one in product(PLACEMENTS, repeat=len(names)))
    assert place(workload, workers, pooled=pooled).cost.seconds == min(costs.of(p).seconds for p in every)


@settings(max_examples=examples(20), deadline=None)
@given(workloads(), topologies(), st.data())
def test_fixed_tables_stay_where_they_are_and_the_others_are_placed_for_them(
    workload: Workload, workers: Topology, data: st.DataObject
) -> None:
    names = [table.name for table in workload.tables]
    fixed = data.draw(st.dictionaries(st.sampled_from([*names, "another"]), st.sampled_from(PLACEMENTS)))
    plan = place(workload, workers, fixed=fixed)
    if workers.workers > 1:
        assert {name: plan.placements[name] for name in names if name in fixed}.items() <= fixed.items()
    for placement in PLACEMENTS:
        other = dict.fromkeys(names, placement) | {n: p for n, p in fixed.items() if n in names}
        assert plan.cost.seconds <= PlacementCosts(workload, workers).of(other).seconds


def test_fixed_tables_that_do_not_fit_are_an_error() -> None:
    workload = Workload((load("a", rows=1000), load("b", rows=1000)), 1, 1)
    room = PlacementCosts(workload, topology(2)).uniform("row_wise").most_memory
    assert place(workload, topology(2, room), fixed={"a": "row_wise"}).placements["b"] == "row_wise"
    with pytest.raises(ConfigError) as caught:
        place(workload, topology(2, room), fixed={"b": "replicated"})
    assert caught.value.where == "with b: replicated"
    assert caught.value.what.startswith("the rows need ")


def test_a_small_table_in_every_batch_is_replicated_and_a_large_one_is_not() -> None:
    # All ids of a batch are in it: rows sent forth cost more than gradients to a second worker.
    small = load("small", rows=10, distinct=10, distinct_all=10, dim=64)
    large = load("large", rows=10**6, distinct=1000, distinct_all=2000)
    plan = place(Workload((small, large), 1000, 1), topology(2, 25_000_000, rates=FAST, bandwidth=1e6))
    assert plan.placements == {"small": "row_wise", "large": "row_wise"}
    costly = replace(plan.workload, forward=FLOAT32)
    plan = place(costly, topology(2, 25_000_000, rates=FAST, bandwidth=1e6))
    assert plan.placements == {"small": "replicated", "large": "row_wise"}


def test_one_worker_and_bounded_stores_have_no_choice() -> None:
    workload = Workload((load(),), 1, 1)
    for workers in (topology(1), topology(3, bounded_by="admission"), topology(3, 1, bounded_by="eviction")):
        plan = place(workload, workers)
        assert plan.placements == {"t": "row_wise"}
        assert plan.uniform == plan.instead == {}


def test_what_does_not_fit_is_an_error_that_says_what_is_missing() -> None:
    workload = Workload((load(rows=1000, weight_bytes=64, dim=16),), 1, 1)
    assert place(workload, topology(4, 250 * 87)).placements == {"t": "row_wise"}
    with pytest.raises(ConfigError) as caught:
        place(workload, topology(4, 250 * 87 - 1, memory_from="its part of embedding.memory"))
    error = caught.value
    assert error.what == "the rows need 21 KiB at each worker, which has 21 KiB: 1 B too little"
    assert error.where == "4 workers; memory: its part of embedding.memory; largest table 't' with 1,000 rows"
    assert error.fix.startswith("use 1 more worker with as much memory each, or embedding.dtype bfloat16, or")
    with pytest.raises(ConfigError, match=r"use 6 more workers .*each, or more memory"):
        place(workload, topology(4, 100 * 87))
    for memory in (50, 87):  # without room for a row in excess of an even split
        with pytest.raises(ConfigError, match="use more memory; or set"):
            place(workload, topology(4, memory))


@pytest.mark.parametrize(("dim", "short"), [(15, 55), (16, 55), (17, 59)])
def test_a_shorter_format_is_advised_where_it_makes_room(dim: int, short: int) -> None:
    """Rows of two bytes a weight, filled up to four, 4 bytes of state and 19 of index."""
    workload = Workload((load("b", rows=100), load("a", rows=1000, weight_bytes=4 * dim, dim=dim)), 1, 1)
    for memory, advised in ((250 * short + 25 * 31, True), (250 * short + 25 * 31 - 1, False)):
        with pytest.raises(ConfigError, match="largest table 'a' with 1,000 rows") as caught:
            place(workload, topology(4, memory))
        assert ("bfloat16" in (caught.value.fix or "")) is advised


def test_the_largest_table_is_that_of_most_bytes() -> None:
    wide, long = load("wide", rows=1000, weight_bytes=64), load("long", rows=1200)
    with pytest.raises(ConfigError, match="largest table 'wide' with 1,000 rows"):
        place(Workload((long, wide), 1, 1), topology(1, 100))


def test_admission_alone_does_not_make_room() -> None:
    with pytest.raises(ConfigError, match="too little"):
        place(Workload((load(),), 1, 1), topology(1, 100, bounded_by="admission"))
