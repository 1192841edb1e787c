"""Tables and workers that Hypothesis draws."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from satrap.plan import TableLoad, Topology, WorkerRates, Workload


def load(name: str = "t", **changes: Any) -> TableLoad:
    """A table of 100 rows of 4 + 1 float32."""
    values: dict[str, Any] = {
        "dim": 4,
        "weight_bytes": 16,
        "state_bytes": 4,
        "rows": 100,
        "ids": 20,
        "distinct": 10,
        "distinct_all": 15,
    }
    return TableLoad(name, **values | changes)


def topology(workers: int, memory: float = 1e12, **changes: Any) -> Topology:
    return Topology(workers, memory, **changes)


@st.composite
def workloads(draw: st.DrawFn, most: int = 9) -> Workload:
    tables = []
    for i in range(draw(st.integers(1, most))):
        ids = draw(st.integers(1, 3000))
        distinct = draw(st.integers(1, ids))
        dim = draw(st.sampled_from([1, 8, 64]))
        rows = draw(st.integers(1, 10**7))
        tables.append(
            load(
                f"t{i}",
                dim=dim,
                weight_bytes=4 * dim,
                rows=rows,
                ids=ids,
                distinct=distinct,
                distinct_all=distinct * draw(st.floats(1, 2)),
                pooled_features=draw(st.integers(0, 2)),
            )
        )
    return Workload(tuple(tables), batch_size=1000, steps=1)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    rates = WorkerRates(draw(st.sampled_from([1e5, 1e7])), draw(st.sampled_from([1e5, 1e7])))
    return topology(
        draw(st.integers(2, 5)),
        bandwidth=draw(st.sampled_from([1e6, 1e8, 1e10])),
        latency=draw(st.sampled_from([1e-6, 1e-3])),
        rates=dict.fromkeys([1, 8, 64], rates),
    )
