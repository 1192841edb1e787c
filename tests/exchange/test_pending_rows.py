from __future__ import annotations

from collections import Counter, deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.exchange.pending_rows import PendingRows
from satrap.store import Shard
from tests.contract.parties import SEED, TABLES

LOOKUPS = st.lists(st.tuples(st.lists(st.integers(0, 30), unique=True), st.booleans()), max_size=20)


@settings(deadline=None)
@given(LOOKUPS)
def test_rows_are_awaited_by_the_lookups_that_wait_for_them(lookups: list[tuple[list[int], bool]]) -> None:
    shard = Shard(TABLES, seed=SEED)
    awaited, waiting, counts = PendingRows(shard), deque[tuple[list[int], object]](), Counter[int]()
    for ids, update in lookups:
        if update and waiting:
            first, slots = waiting.popleft()
            awaited.remove(slots)  # type: ignore[arg-type]
            counts.subtract(first)
        _, slots = shard.lookup_slots(1, np.array(ids, np.uint64), np.array([0, len(ids)], np.int64))
        assert awaited.among(slots).tolist() == [counts[i] > 0 for i in ids]
        awaited.add(slots)
        counts.update(ids)
        waiting.append((ids, slots))
    shard.close()
