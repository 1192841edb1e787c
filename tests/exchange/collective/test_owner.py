from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import StoreError
from satrap.exchange.collective import Alone, Placement
from satrap.exchange.collective.owner import KEPT, Owner, merge, pack, unpack
from satrap.exchange.collective.placement import Holders
from satrap.exchange.protocol import TableGroup
from satrap.exchange.split import Part
from satrap.store import StoreConfig
from tests.contract.parties import TABLES

GROUPS = [TableGroup(0, ("a", "b"), 4), TableGroup(1, ("c",), 17)]
IDS = st.lists(st.integers(0, 30) | st.integers(2**64 - 3, 2**64 - 1), unique=True, max_size=20)


@st.composite
def asked(draw: st.DrawFn) -> list[Part | None]:
    """What one rank asks one owner for: distinct ids in each table of some groups."""
    parts: list[Part | None] = []
    for group in GROUPS:
        if draw(st.booleans()):
            tables = [draw(IDS) for _ in group.tables]
            ids = np.array([i for table in tables for i in table], np.uint64)
            parts.append(Part(ids, np.cumsum([0, *map(len, tables)]).astype(np.int64), None))
        else:
            parts.append(None)
    return parts


@settings(deadline=None)
@given(asked(), st.binary(max_size=9))
def test_messages_come_back_with_what_follows_them(parts: list[Part | None], rest: bytes) -> None:
    message = np.concatenate([pack(GROUPS, parts), np.frombuffer(rest, np.uint8)])
    found, left = unpack(GROUPS, message)
    assert left.tobytes() == rest
    for mine, theirs in zip(parts, found, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            np.testing.assert_array_equal(mine.ids, theirs.ids)
            np.testing.assert_array_equal(mine.splits, theirs.splits)


@settings(deadline=None)
@given(st.lists(asked(), min_size=1, max_size=4))
def test_ids_of_all_ranks_are_one_request_with_each_rank_s_places(ranks: list[list[Part | None]]) -> None:
    wanted = merge(GROUPS, ranks)
    assert [m.group for m in wanted] == [
        g.index for g in GROUPS if any(r[g.index] is not None for r in ranks)
    ]
    for m in wanted:
        for t in range(len(GROUPS[m.group].tables)):
            own = m.ids[m.splits[t] : m.splits[t + 1]].tolist()
            parts = [r[m.group] for r in ranks]
            every = [i for p in parts if p is not None for i in p.ids[p.splits[t] : p.splits[t + 1]].tolist()]
            assert own == list(dict.fromkeys(every))
        for places, rank in zip(m.places, ranks, strict=True):
            part = rank[m.group]
            np.testing.assert_array_equal(m.ids[places], [] if part is None else part.ids)
            assert (np.searchsorted(places, m.splits) == (0 if part is None else part.splits)).all()


def test_owners_know_the_same_lookups_though_one_of_them_has_refused_one() -> None:
    owners = [
        Owner(StoreConfig().open(TABLES), GROUPS, Holders(GROUPS, Placement(), Alone())) for _ in range(2)
    ]
    [wanted] = merge(GROUPS, [[None, Part(np.arange(5, dtype=np.uint64), np.array([0, 5]), None)]])
    for number in range(3 * KEPT):
        owners[0].look_up(number, [wanted], create=True)
        if number == KEPT:
            with pytest.raises(StoreError):
                owners[1].look_up(number, [replace(wanted, ids=wanted.ids[:3])], create=True)
        else:
            owners[1].look_up(number, [wanted], create=True)
        for other in (n for n in range(number + 1) if n != KEPT):
            assert owners[0].knows(other) == owners[1].knows(other) == (other > number - KEPT)
