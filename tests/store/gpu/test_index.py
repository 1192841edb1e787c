"""The index on the device as its users see it, and any sequence of calls against the sequential model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from satrap.errors import StoreError
from satrap.retention import Eviction
from satrap.store import bucket_of
from satrap.store.gpu import index as host
from satrap.store.gpu.index import MOST_ROWS, DeviceIndex
from satrap.store.hashes import BUCKETS
from tests.store.gpu.both import DEVICE, Both, random_ids
from tests.support.examples import examples

pytestmark = pytest.mark.triton


def test_entries_are_in_the_order_of_every_export() -> None:
    both = Both(3, 400, Eviction("lru"))
    both.request(random_ids(np.random.default_rng(0), 300, 3))
    rows = both.index.entries()
    assert list(zip(*(column.tolist() for column in rows), strict=True)) == both.model.entries()
    tables = np.array(both.tables)[rows.tables]
    buckets = np.array([bucket_of(t, rows.ids[i : i + 1])[0] for i, t in enumerate(tables)])
    key = rows.tables.astype(np.int64) * BUCKETS + buckets
    assert (np.diff(key) >= 0).all()


@pytest.mark.parametrize("width", [4, 1024])
def test_entries_of_some_buckets(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SEGMENT", width)
    both = Both(2, 400)
    both.request(random_ids(np.random.default_rng(0), 300, 2))
    parts = [both.index.entries(first, last) for first, last in ((0, 0), (1, 700), (701, 4000), (4001, 4095))]
    whole = both.index.entries()
    for column, want in enumerate(whole):
        got = np.concatenate([part[column] for part in parts])
        np.testing.assert_array_equal(np.sort(got), np.sort(want))
    buckets = bucket_of("t0", parts[1].ids[parts[1].tables == 0])
    assert buckets.min() >= 1
    assert buckets.max() <= 700


def test_rows_are_removed_and_all_forgotten() -> None:
    rng = np.random.default_rng(1)
    both = Both(2, 100)
    ids = random_ids(rng, 80, 2)
    both.request(ids)
    both.remove(ids[:50] + random_ids(rng, 10, 2))
    both.remove(ids[:50])
    both.request(ids[20:60])
    both.clear()
    assert both.peek(ids) == [-1] * 80
    assert both.request(ids) == list(range(80))
    assert both.index.counters()["created"].sum() == 80 + 30 + 80


def test_the_log_tells_who_lost_a_slot() -> None:
    both = Both(1, 40, Eviction("lru"))
    rng = np.random.default_rng(2)
    for _ in range(4):
        both.request(random_ids(rng, 40))
    assert both.index.reassigned > len(both.index.lists.log)
    with pytest.raises(StoreError, match="the log names the last 64"):
        both.index.taken(0)


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize(
    "eviction", [None, Eviction("lru"), Eviction("ttl", ttl=9)], ids=["none", "lru", "ttl"]
)
def test_memory_beside_the_rows(tables: int, eviction: Eviction | None) -> None:
    rows = 2_000_000
    index = DeviceIndex(["a", "b"][:tables], rows, eviction, device=DEVICE)
    each = index.bytes / rows
    assert each <= 24.1  # the counters of the tables are a fixed part of it
    assert each >= 20
    assert DeviceIndex(["a"], 3, device=DEVICE).bytes < 2000


def test_a_number_of_rows_that_no_index_has() -> None:
    for rows in (0, -1, MOST_ROWS + 1):
        with pytest.raises(StoreError, match="holds 1 to"):
            DeviceIndex(["a"], rows, device=DEVICE)


IDS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40)), max_size=60)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), IDS),
        st.tuples(st.just("request"), IDS),
        st.tuples(st.just("admit"), IDS),
        st.tuples(st.just("sharing"), st.integers(0, 40)),
        st.tuples(st.just("remove"), IDS),
        st.tuples(st.just("grow"), st.integers(0, 40)),
        st.tuples(st.just("clear"), st.none()),
    ),
    min_size=2,
    max_size=6,
)
POLICIES = [None, Eviction("lru"), Eviction("lfu"), Eviction("ttl", ttl=2)]


@settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(CALLS, st.integers(1, 60), st.sampled_from(POLICIES), st.integers(0, 2), st.sampled_from([2, 3, 1024]))
def test_any_sequence_of_calls(calls, rows, eviction, protected, width) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "SEGMENT", width)
        both = Both(2, rows, eviction, protected=protected, capacity=64)
        for name, argument in calls:
            if name == "admit":
                both.request(argument, admitted=argument[::2])
            elif name == "sharing":
                both.request(both.sharing(0, argument, second=0))
            elif name == "grow":
                rows += argument
                try:
                    both.grow(rows)
                except StoreError:
                    both.compare()  # nothing has changed
            elif name == "clear":
                both.clear()
            else:
                getattr(both, name)(argument)


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_the_rows_used_least_are_named(policy: str) -> None:
    both = Both(2, 100, Eviction(policy), capacity=64)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    first, second, third = (random_ids(rng, 20, 2) for _ in range(3))
    for ids in (first, second, third, second, third, third):
        both.request(ids)
    kept = first[:5]
    slots = torch.tensor([*both.peek(kept), -1], dtype=torch.int32, device=DEVICE)
    rows = both.index.least_used(25, slots)
    named = set(zip(rows.tables.tolist(), rows.ids.tolist(), strict=True))
    assert named >= set(first[5:])
    assert len(named - set(first)) == 10
    assert named - set(first) <= set(second)
    assert (np.diff(rows.tables) >= 0).all()
    assert sorted(both.peek([*named])) == sorted(rows.slots.tolist())
    assert len(both.index.least_used(1000, slots).ids) == 55
