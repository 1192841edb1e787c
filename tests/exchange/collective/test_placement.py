"""Whoever holds the rows, results are the same to the bit, and every row is saved once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.checkpoint import Series
from satrap.errors import ConfigError
from satrap.exchange.collective import CollectiveExchange, Placement
from satrap.exchange.collective.placement import PLACEMENTS, Holders, deal
from satrap.exchange.protocol import TableGroup
from satrap.exchange.servers import Wire
from satrap.store import BUCKETS, Admission, Eviction, StoreConfig, bucket_of, open_store
from tests.contract.parties import SEED, TABLES, assert_equal_contents, contents, local, request
from tests.exchange.collective.parties import EXACT, MIXED, Meeting, ThreadRanks, Together, members, together
from tests.exchange.collective.work import STORE, batches, change, run, write
from tests.support.examples import examples

SIXTEEN, EIGHT = Wire("float16", "bfloat16"), Wire("int8", "int8")
UNIFORM = [Placement(kind) for kind in PLACEMENTS[1:]]
GROUPS = [TableGroup(0, ("a", "b"), 4), TableGroup(1, ("c",), 17), TableGroup(2, ("d", "e"), 8)]


Results = tuple[list[list[np.ndarray]], dict[str, tuple[np.ndarray, ...]]]


@cache
def row_wise(world: int, wire: Wire, dtype: str) -> Results:
    """Return what all placements are compared with; nobody changes it."""
    return results(world, Placement(), wire, dtype)


def results(world: int, place: Placement, wire: Wire, dtype: str) -> Results:
    """Train on several ranks; return the rows that each saw, and all that there are then."""
    works, tables = [batches(seed) for seed in range(world)], [replace(t, dtype=dtype) for t in TABLES]
    ranks = members(world, tables, STORE, place, wire)
    seen = together([lambda r=r: run(ranks[r], works[r], 2) for r in range(world)])  # type: ignore[misc]
    known = [request(0, range(40), range(3)), request(1, [1, 2])]
    seen += together([lambda r=r: r.lookup(known, create=False).result() for r in ranks])  # type: ignore[misc]
    everybody = Together(ranks)
    rows = contents(everybody)  # type: ignore[arg-type]
    assert everybody.statistics().rows == sum(len(ids) for ids, _, _ in rows.values())
    everybody.close()
    return seen, rows


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
@pytest.mark.parametrize(
    ("placement", "wire"),
    [
        *itertools.product([MIXED], [EXACT, EIGHT]),
        (UNIFORM[0], SIXTEEN),
        (UNIFORM[1], EIGHT),
        pytest.param(MIXED, SIXTEEN, marks=pytest.mark.slow),
        *(pytest.param(UNIFORM[0], wire, marks=pytest.mark.slow) for wire in (EXACT, EIGHT)),
        *(pytest.param(UNIFORM[1], wire, marks=pytest.mark.slow) for wire in (EXACT, SIXTEEN)),
    ],
)
@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_lookups_and_rows_do_not_depend_on_the_placement(
    world: int, placement: Placement, wire: Wire, dtype: str
) -> None:
    seen, rows = results(world, placement, wire, dtype)
    expected, reference = row_wise(world, wire, dtype)
    for mine, theirs in zip(seen, expected, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
    for table, columns in reference.items():
        for x, y in zip(columns, rows[table], strict=True):
            np.testing.assert_array_equal(x, y)


def test_replicas_are_equal_and_their_rows_do_not_travel() -> None:
    ranks = members(3, TABLES, STORE, MIXED)
    together([lambda r=r: run(ranks[r], batches(r), 1) for r in range(3)])  # type: ignore[misc]
    first, *others = [list(rank.shard.export("a")) for rank in ranks]
    for other in others:
        for x, y in zip(first, other, strict=True):
            for field in ("ids", "weights", "state"):
                np.testing.assert_array_equal(getattr(x, field), getattr(y, field))
    [whole] = [rank for rank in ranks if rank.shard.statistics().tables["c"].rows]
    assert whole.shard.statistics().tables["c"].rows == ranks[0].telemetry.statistics().tables["c"].rows
    counts = ranks[1].telemetry.statistics().tables["a"]
    assert counts == ranks[0].shard.statistics().tables["a"]  # those of one replica
    copied = ranks[0]._holders.copied(1, 0, np.array([0, 2, 5]))
    np.testing.assert_array_equal(copied, [True, True, False, False, False])
    Together(ranks).close()


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcde"), st.sampled_from(PLACEMENTS)),
    st.sampled_from(PLACEMENTS),
    st.integers(1, 5),
    st.lists(st.integers(0, 2**64 - 1), max_size=40, unique=True),
)
def test_every_bucket_of_a_table_is_saved_once_and_asked_of_who_holds_it(
    tables: dict[str, str], default: str, size: int, ids: list[int]
) -> None:
    placement = Placement(default, tables)
    ranks = [Holders(GROUPS, placement, ThreadRanks(Meeting(size), r)) for r in range(size)]
    for group in GROUPS:
        asked = request(group.index, *([ids] * len(group.tables)))
        for rank, everywhere in itertools.product(range(size), (False, True)):
            parts = ranks[rank].parts(asked, everywhere=everywhere)
            for t, table in enumerate(group.tables):
                buckets = bucket_of(table, asked.ids[asked.splits[t] : asked.splits[t + 1]])
                for other, part in enumerate(parts):
                    held = ranks[other].held(table)
                    wanted = (buckets >= held.start) & (buckets < held.stop)
                    if placement.of(table) == "replicated" and not everywhere:
                        wanted &= other == rank
                    found = part.ids[part.splits[t] : part.splits[t + 1]]
                    np.testing.assert_array_equal(found, np.array(ids, np.uint64)[wanted])
        for table in group.tables:
            assert Counter(b for h in ranks for b in h.saved(table)) == Counter(range(BUCKETS))
            assert all(set(h.saved(table)) <= set(h.held(table)) for h in ranks)
            assert sum(h.counted(table) for h in ranks) == (
                1 if placement.of(table) == "replicated" else size
            )
    dims = {table: group.dim for group in GROUPS for table in group.tables}
    loads = [sum(dims[table] for table in holders.whole) for holders in ranks]
    assert max(loads) - min(loads) <= max(dims.values())


@pytest.mark.cluster
@pytest.mark.parametrize("placement", [*UNIFORM, MIXED])
def test_a_checkpoint_comes_back_with_any_placement_and_number_of_ranks(
    placement: Placement, tmp_path: Path
) -> None:
    exchange, series = Together(members(3, TABLES, StoreConfig(seed=SEED), placement)), Series(str(tmp_path))
    change(exchange, range(300))
    write(series, 1, exchange.rows.cut(delta=False))
    change(exchange, range(290, 310))
    write(series, 2, exchange.rows.cut(delta=True))
    for ranks in (1, 2, 4):
        for other in (Placement(), *UNIFORM, MIXED):
            there = Together(members(ranks, TABLES, StoreConfig(seed=SEED), other))
            there.rows.read(series.place(2), exact=True, follow=True)
            assert_equal_contents(exchange, there)  # type: ignore[arg-type]
            assert there.statistics().rows == 620
            assert there.rows.cut(delta=True).deleted == {}  # it knows what it has read
            there.rows.clear()
            for table, chunk in exchange.rows.cut(still=True):
                there.rows.load(table, chunk)
            assert_equal_contents(exchange, there)  # type: ignore[arg-type]
            there.close()
    one = local()
    one.rows.read(series.place(2))
    assert_equal_contents(exchange, one)  # type: ignore[arg-type]
    one.close()
    exchange.close()


@pytest.mark.parametrize(
    ("placement", "store", "what"),
    [
        (Placement(tables={"x": "replicated"}), StoreConfig(), "unknown table 'x'"),
        (Placement("replicated"), StoreConfig(admission=Admission(2)), "admission requires the placement"),
        (
            Placement("table_wise"),
            StoreConfig(memory=1 << 24, eviction=Eviction("lru")),
            "eviction requires the placement",
        ),
    ],
)
def test_what_cannot_be_is_refused(placement: Placement, store: StoreConfig, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        members(1, TABLES, store, placement)


@pytest.mark.parametrize(
    ("own", "what"),
    [
        ({"admission": Admission(2)}, "admission requires the placement"),
        ({"eviction": Eviction("ttl", 9)}, "eviction requires the placement"),
        ({"memory": 1 << 20}, "its own memory requires the placement"),
    ],
)
def test_settings_of_one_table_bind_its_placement_alone(own: dict[str, Any], what: str) -> None:
    first, *others = TABLES
    tables = [replace(first, **own), *others]
    with pytest.raises(ConfigError, match=what):
        members(1, tables, placement=Placement(tables={first.name: "replicated"}))
    [exchange] = members(1, tables, placement=Placement("replicated", tables={first.name: "row_wise"}))
    exchange.close()


def test_ranks_divide_the_memory_of_a_table() -> None:
    first, *others = TABLES
    found = members(2, [replace(first, memory=1 << 20, eviction=Eviction("lru")), *others])
    half = open_store(StoreConfig(memory=1 << 19, eviction=Eviction("lru")), [first])
    for exchange in found:
        assert exchange.shard.groups[0].directory.limit == half.groups[0].directory.limit
    together([exchange.close for exchange in found])
    half.close()


@pytest.mark.parametrize("arguments", [("everywhere",), ("row_wise", {"a": "column_wise"})])
def test_an_unknown_placement_is_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises(ConfigError, match=r"unknown placement"):
        Placement(*arguments)  # type: ignore[arg-type]


def test_ranks_with_other_placements_are_refused() -> None:
    meeting = Meeting(2)

    def one(rank: int) -> None:
        place = Placement(tables={"b": PLACEMENTS[rank]})
        with pytest.raises(ConfigError, match="in tables"):
            CollectiveExchange(ThreadRanks(meeting, rank), TABLES, placement=place)

    together([lambda r=r: one(r) for r in range(2)])  # type: ignore[misc]


def best_deal(loads: Mapping[str, float], workers: int) -> float:
    deals = itertools.product(range(workers), repeat=len(loads))
    sums = (np.bincount(one, weights=list(loads.values()), minlength=workers) for one in deals)
    return float(min(s.max() for s in sums))


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 3))
def test_tables_are_dealt_nearly_as_evenly_as_possible(sizes: list[int], workers: int) -> None:
    loads = {f"t{i}": float(one) for i, one in enumerate(sizes)}
    owners = deal(loads, workers, {})
    assert owners.keys() == loads.keys()
    sums = np.bincount(list(owners.values()), weights=[loads[name] for name in owners], minlength=workers)
    assert sums.max() <= (4 / 3 - 1 / (3 * workers)) * best_deal(loads, workers) + 1e-9


def test_the_largest_is_dealt_first() -> None:
    assert deal({"a": 1.0, "b": 3.0, "c": 2.0, "d": 3.0}, 2, {}) == {"b": 0, "d": 1, "c": 0, "a": 1}


def test_a_given_rank_counts_for_those_dealt_after_it() -> None:
    assert deal({"a": 3.0, "b": 2.0, "c": 1.0}, 2, {"b": 4}) == {"a": 0, "b": 0, "c": 1}
