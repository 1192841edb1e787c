from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import StoreError
from satrap.exchange import LookupRequest
from satrap.exchange.collective import Alone, CollectiveExchange, Placement
from satrap.exchange.collective.owner import KEPT, Owner, RankUpdate, merge
from satrap.exchange.collective.placement import Holders
from satrap.exchange.kernels import FLOAT32
from satrap.exchange.lookup import Bags
from satrap.exchange.wire.rows import row_section
from satrap.exchange.wire.sections import Section
from satrap.rpc.wire.frames import as_bytes
from satrap.store import StoreConfig
from satrap.store.shard import open_store
from tests.contract.parties import TABLES, request
from tests.exchange.collective.parties import EXACT, MIXED, Meeting, ThreadRanks, members, together
from tests.exchange.collective.work import GROUPS, asked

T = TypeVar("T")


def _ids(part: Section) -> np.ndarray:
    assert part.ids is not None
    return part.ids


@pytest.mark.parametrize("number", [None, 1, 77])
@pytest.mark.parametrize("groups", [[], [1, 0]])
def test_an_update_arrives_as_it_was_sent(number: int | None, groups: list[int]) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    update = RankUpdate(number, {group: row_section(group, rows, FLOAT32) for group in groups})
    again = RankUpdate.unpack([as_bytes(part) for part in update.pack()])
    assert (again.number, list(again.sections), again.rejected) == (number, groups, False)
    assert again.named == (number is None and bool(groups))
    for section in again.sections.values():
        np.testing.assert_array_equal(as_bytes(section.rows).view(np.float32), rows.reshape(-1))
    assert RankUpdate.unpack([as_bytes(part) for part in RankUpdate(rejected=True).pack()]).rejected


@settings(deadline=None)
@given(st.lists(asked(), min_size=1, max_size=4))
def test_ids_of_all_ranks_are_one_request_with_each_rank_s_places(
    ranks: list[dict[int, Section]],
) -> None:
    wanted = merge(GROUPS, ranks)
    assert [m.group for m in wanted] == [g.index for g in GROUPS if any(g.index in r for r in ranks)]
    for m in wanted:
        for t in range(len(GROUPS[m.group].tables)):
            own = m.ids[m.splits[t] : m.splits[t + 1]].tolist()
            parts = [r.get(m.group) for r in ranks]
            every = [
                i for p in parts if p is not None for i in _ids(p)[p.splits[t] : p.splits[t + 1]].tolist()
            ]
            assert own == list(dict.fromkeys(every))
        for places, rank in zip(m.places, ranks, strict=True):
            part = rank.get(m.group)
            np.testing.assert_array_equal(m.ids[places], [] if part is None else _ids(part))
            assert (np.searchsorted(places, m.splits) == (0 if part is None else part.splits)).all()


def test_owners_know_the_same_lookups_though_one_of_them_has_refused_one() -> None:
    owners = [
        Owner(open_store(StoreConfig(), TABLES), GROUPS, Holders(GROUPS, Placement(), Alone()))
        for _ in range(2)
    ]
    [wanted] = merge(GROUPS, [{1: Section(1, np.array([0, 5]), np.arange(5, dtype=np.uint64))}])
    for number in range(3 * KEPT):
        owners[0].look_up(number, [wanted], create=True)
        if number == KEPT:
            with pytest.raises(StoreError):
                owners[1].look_up(number, [replace(wanted, ids=wanted.ids[:3])], create=True)
        else:
            owners[1].look_up(number, [wanted], create=True)
        for other in (n for n in range(number + 1) if n != KEPT):
            assert owners[0].knows(other) == owners[1].knows(other) == (other > number - KEPT)


def pooling(work: Callable[[CollectiveExchange, int], T]) -> list[T]:
    """Do something on two ranks, of which one holds the whole table c and pools it; a is replicated."""
    meeting = Meeting(2)

    def one(rank: int) -> T:
        here = ThreadRanks(meeting, rank)
        return work(CollectiveExchange(here, TABLES, wire=EXACT, placement=MIXED, pools=True), rank)

    return together([lambda r=r: one(r) for r in range(2)])  # type: ignore[misc]


def bagged(ids: int, offsets: list[int]) -> LookupRequest:
    """Ask for vectors of table c; all ids of a batch are the first of the distinct ones."""
    bag = Bags(0, np.zeros(offsets[-1], np.int32), np.array(offsets, np.int64), None, "sum")
    return replace(request(1, list(range(ids))), bags=[bag])


def test_a_sum_that_overflows_where_it_is_made_is_refused_on_all() -> None:
    def work(exchange: CollectiveExchange, rank: int) -> list[np.ndarray]:
        wanted = [request(0, [5], []), bagged(1, [0, 50])] if rank else [request(0, [5], [])]
        rows = [request(0, [5], [])]
        before = exchange.lookup(rows, create=False).result()
        lookup = exchange.lookup(wanted, create=True)
        gradients = [np.ones((1, 4), np.float32), np.full((1, 17), 1e38, np.float32)]
        assert lookup.result()[-1].shape == (1, 17 if rank else 4)
        exchange.apply(lookup, gradients[: len(wanted)], lr_scale=1.0)
        with pytest.raises(StoreError, match=r"update was refused|not finite|infinite"):
            exchange.flush()
        return [*before, *exchange.lookup(rows, create=False).result()]

    for before, after in pooling(work):
        np.testing.assert_array_equal(before, after)


def test_bags_without_ids_take_their_place_among_the_gradients() -> None:
    def work(exchange: CollectiveExchange, rank: int) -> np.ndarray:
        wanted = [request(0, [], [7]), bagged(0, [0, 0, 0])]
        lookup = exchange.lookup(wanted if rank else [], create=True)
        gradients = [np.ones((1, 4), np.float32), np.full((2, 17), 9.0, np.float32)]
        found = lookup.result()
        assert not rank or not found[1].any()
        exchange.apply(lookup, gradients if rank else [], lr_scale=1.0)
        exchange.flush()
        return exchange.lookup([request(0, [], [7])], create=False).result()[0]

    plain = members(2, TABLES)

    def same(rank: int) -> np.ndarray:
        exchange = plain[rank]
        lookup = exchange.lookup([request(0, [], [7])] if rank else [], create=True)
        exchange.apply(lookup, [np.ones((1, 4), np.float32)] if rank else [], lr_scale=1.0)
        exchange.flush()
        return exchange.lookup([request(0, [], [7])], create=False).result()[0]

    for mine, theirs in zip(pooling(work), together([lambda r=r: same(r) for r in range(2)]), strict=True):  # type: ignore[misc]
        np.testing.assert_array_equal(mine, theirs)
