from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import StoreError
from satrap.exchange.collective import Alone, Placement
from satrap.exchange.collective.asks import Ask
from satrap.exchange.collective.owner import KEPT, Owner, merge
from satrap.exchange.collective.placement import Holders
from satrap.store import StoreConfig
from tests.contract.parties import TABLES
from tests.exchange.collective.test_asks import GROUPS, asked


@settings(deadline=None)
@given(st.lists(asked(), min_size=1, max_size=4))
def test_ids_of_all_ranks_are_one_request_with_each_rank_s_places(ranks: list[list[Ask | None]]) -> None:
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
    [wanted] = merge(GROUPS, [[None, Ask(np.arange(5, dtype=np.uint64), np.array([0, 5]))]])
    for number in range(3 * KEPT):
        owners[0].look_up(number, [wanted], create=True)
        if number == KEPT:
            with pytest.raises(StoreError):
                owners[1].look_up(number, [replace(wanted, ids=wanted.ids[:3])], create=True)
        else:
            owners[1].look_up(number, [wanted], create=True)
        for other in (n for n in range(number + 1) if n != KEPT):
            assert owners[0].knows(other) == owners[1].knows(other) == (other > number - KEPT)
