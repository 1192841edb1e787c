"""What a model asks for, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satrap.errors import ConfigError
from satrap.plan import Workload
from satrap.tools.plan.cluster import Demand
from tests.plan.loads import load, workloads


def test_bytes_and_traffic_are_those_of_the_rows() -> None:
    wide = load("wide", dim=8, weight_bytes=16, state_bytes=4, rows=300, distinct=500)
    narrow = load("narrow", dim=4, weight_bytes=8, state_bytes=4, rows=100, distinct=20)
    demand = Demand.of(Workload((wide, narrow), batch_size=1000, steps=1), 2.8e6, 64.0, 10)
    assert [part.rows for part in demand.parts] == [300_000, 100_000]  # 2,800 weights a thousand times
    assert demand.parameters == 2_800_000
    assert demand.parts[0].bytes == 300_000 * (16 + 4 + 24)
    assert demand.bytes == 300_000 * 44 + 100_000 * 36
    assert demand.ids == (0.5, 0.02)
    assert demand.wire == pytest.approx(0.5 * (8 + 16 + 16) + 0.02 * (8 + 8 + 8))  # two bytes a number
    assert demand.vectors == pytest.approx((wide.ids * (16 + 16) + narrow.ids * (8 + 8)) / 1000)  # not pooled
    assert demand.costs([2.0, 100.0]) == pytest.approx(3.0)


@given(workloads(), st.floats(1e3, 1e15))
def test_tables_grow_alike_to_the_size_that_is_asked(workload: Workload, parameters: float) -> None:
    demand = Demand.of(workload, parameters, 1.0, 1)
    spare = sum(table.dim for table in workload.tables)  # rows are whole
    assert parameters * (1 - 1e-9) <= demand.parameters <= parameters * (1 + 1e-9) + spare
    known = sum(table.rows * table.dim for table in workload.tables)
    for part, table in zip(demand.parts, workload.tables, strict=True):
        assert part.rows == pytest.approx(table.rows * parameters / known, rel=1e-9, abs=1)


@given(workloads(), st.lists(st.integers(1, 10**9), min_size=9, max_size=9), st.floats(1e3, 1e15))
def test_a_table_never_has_more_rows_than_it_can(
    workload: Workload, most: list[int], parameters: float
) -> None:
    first, *others = workload.tables
    tables = [first, *(replace(t, most=max(m, t.rows)) for t, m in zip(others, most, strict=False))]
    demand = Demand.of(replace(workload, tables=tuple(tables)), parameters, 1.0, 1)
    assert all(
        t.most is None or (p.rows <= t.most and p.full == (p.rows == t.most))
        for p, t in zip(demand.parts, tables, strict=True)
    )
    assert demand.parameters == pytest.approx(parameters, rel=1e-9, abs=sum(t.dim for t in tables))
    growth = {
        p.rows / t.rows for p, t in zip(demand.parts, tables, strict=True) if not p.full and t.rows > 1e6
    }
    assert not growth or max(growth) == pytest.approx(min(growth), rel=1e-3, abs=1e-5)


def test_tables_that_are_all_full_cannot_have_more_parameters() -> None:
    full = [load("a", rows=10, most=20), load("b", dim=8, rows=5, most=5), load("c", rows=0)]
    with pytest.raises(ConfigError, match=r"to 121 parameters: together they have at most 120"):
        Demand.of(Workload(tuple(full), batch_size=10, steps=1), 121, 1.0, 1)
    assert Demand.of(Workload(tuple(full[:2]), batch_size=10, steps=1), 120, 1.0, 1).parameters == 120
