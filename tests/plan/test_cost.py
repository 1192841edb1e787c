"""Costs against a simulation that hands over one id, row and gradient after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.exchange.collective.placement import PLACEMENTS
from satrap.exchange.kernels import FLOAT32, INT8
from satrap.exchange.shard_map import ShardMap
from satrap.plan import PlacementCosts, TableLoad, WorkerRates, Workload
from satrap.store import bucket_of
from tests.plan.loads import load, topologies, topology, workloads
from tests.support.examples import examples

RATES = WorkerRates(lookups=1e6, updates=4e5)
BATCH = 50


class Table:
    """A table whose ids are spread evenly: worker r is the holder of all ids that are r modulo workers."""

    def __init__(self, seed: int, workers: int, name: str) -> None:
        random = np.random.default_rng(seed)
        runs = int(random.integers(1, 90))
        self.rows, self.dim = runs * workers, int(random.integers(1, 20))
        asked = random.integers(1, runs + 1)
        chosen = [random.choice(runs, asked, replace=False) for _ in range(workers)]
        self.asked = [[run * workers + r for run in own for r in range(workers)] for own in chosen]
        self.twice = int(random.integers(0, 9))  # ids of a batch that are there already
        self.features = int(random.integers(0, 3))
        self.load = load(
            name,
            dim=self.dim,
            rows=self.rows,
            ids=len(self.asked[0]) + self.twice,
            distinct=len(self.asked[0]),
            distinct_all=len({i for own in self.asked for i in own}),
            pooled_features=self.features,
        )


def simulate(
    table: Table, placement: str, owner: int | None, workers: int, pooled: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return bytes [ids, rows, gradients; from; to], rows held and rows stepped by worker."""
    sent, held, stepped = np.zeros((3, workers, workers)), np.zeros(workers), np.zeros(workers)

    everywhere, at_holder = placement == "replicated", pooled and owner is not None and table.features > 0
    beside = 4 * (len(table.asked[0]) + table.twice) + 8 * table.features * (BATCH + 1)
    vectors = BATCH * table.features
    each = table.dim + 4 + 4 * table.dim  # a row on its way, and its gradient
    at_holder = at_holder and each * vectors + beside < each * len(table.asked[0])
    holders = {
        one: list(range(workers)) if everywhere else [one % workers if owner is None else owner]
        for one in range(table.rows)
    }
    for one, holding in holders.items():
        for holder in holding:
            held[holder] += 1
            stepped[holder] += any(one in asked for asked in table.asked)
    for rank, asked in enumerate(table.asked):
        for holder in (holder for one in asked for holder in holders[one]):
            sent[0, rank, holder] += 8
            sent[1, holder, rank] += (table.dim + 4) * (not everywhere and not at_holder)
            sent[2, rank, holder] += 4 * table.dim * (not at_holder)
        if at_holder:
            sent[0, rank, owner] += beside
            for _ in range(vectors):
                sent[1, owner, rank] += table.dim + 4
                sent[2, rank, owner] += 4 * table.dim
    sent[:, range(workers), range(workers)] = 0
    return sent, held, stepped


@settings(max_examples=examples(40), deadline=None)
@given(st.data(), st.integers(1, 4), st.booleans())
def test_costs_are_those_of_a_simulation(data: st.DataObject, workers: int, pooled: bool) -> None:
    tables = [
        Table(data.draw(st.integers(0, 2**31)), workers, f"t{i}") for i in range(data.draw(st.integers(1, 3)))
    ]
    placements = {t.load.name: data.draw(st.sampled_from(PLACEMENTS)) for t in tables}
    place = topology(workers, rates={t.dim: RATES for t in tables}, bandwidth=1e6, latency=1e-3)
    workload = Workload(tuple(t.load for t in tables), BATCH, 1, INT8, FLOAT32)
    cost = PlacementCosts(workload, place, pooled=pooled).of(placements)
    sent, held, memory = np.zeros((3, workers, workers)), np.zeros(workers), np.zeros(workers)
    compute = np.zeros(workers)
    for table in tables:
        name = table.load.name
        bytes_, rows, stepped = simulate(table, placements[name], cost.owners.get(name), workers, pooled)
        sent, held, memory = sent + bytes_, held + rows, memory + rows * (16 + 4 + 19)
        compute += stepped / RATES.lookups + stepped / RATES.updates
    assert cost.sent == pytest.approx(sent.sum((0, 2)))
    assert cost.received == pytest.approx(sent.sum((0, 1)))
    assert cost.rows.tolist() == held.tolist()
    assert cost.memory.tolist() == memory.tolist()
    wire = np.maximum(sent.sum(2), sent.sum(1)).sum(0) / 1e6
    assert cost.seconds == pytest.approx((compute + wire).max() + (3e-3 if workers > 1 else 0))


def test_real_buckets_spread_ids_as_the_averages_say() -> None:
    workers, ids = 3, np.random.default_rng(1).integers(1, 2**63, 30_000).astype(np.uint64)
    owners = ShardMap(workers).owners[bucket_of("t", ids)]
    away = float(np.mean([(owners != rank).sum() for rank in range(workers)]))
    table = load(dim=8, ids=len(ids), distinct=len(ids), distinct_all=3 * len(ids))
    cost = PlacementCosts(Workload((table,), 1, 1), topology(workers)).uniform("row_wise")
    assert cost.sent == pytest.approx(away * (8 + 8 * 2 + 8 * 2), rel=0.02)


@settings(max_examples=examples(20), deadline=None)
@given(workloads(), topologies())
def test_replicas_hold_all_and_rows_spread_need_least(workload: Workload, place: object) -> None:
    costs = PlacementCosts(workload, place)  # type: ignore[arg-type]
    spread, copied = costs.uniform("row_wise"), costs.uniform("replicated")
    total = sum(table.rows * table.row_bytes for table in workload.tables)
    assert copied.memory.tolist() == [total] * len(copied.memory)
    rounded = sum(table.row_bytes for table in workload.tables)  # the share of a worker is in whole rows
    assert spread.most_memory - rounded <= costs.uniform("table_wise").most_memory <= total


def test_a_worker_alone_sends_nothing_and_waits_for_nobody() -> None:
    one: TableLoad = load(distinct_all=10)
    for placement in PLACEMENTS:
        cost = PlacementCosts(Workload((one,), 1, 1), topology(1, rates={4: WorkerRates(100, 50)})).uniform(
            placement
        )
        assert cost.sent.tolist() == cost.received.tolist() == [0]
        assert cost.seconds == pytest.approx(10 / 100 + 10 / 50)
