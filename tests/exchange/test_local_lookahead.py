"""What a lookup in one process reads, and when; results are compared in tests/contract."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.exchange.local_lookahead import LocalLookahead
from satrap.store import Shard, Slots
from tests.contract.parties import SEED, TABLES, request


def test_rows_that_changed_after_a_lookup_are_read_again_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again: list[list[int]] = []
    peek = Shard.peek_group

    def watched(self: Shard, group: int, ids: np.ndarray, splits: np.ndarray, *, slots: Slots) -> object:
        again.append(ids.tolist())
        return peek(self, group, ids, splits, slots=slots)

    monkeypatch.setattr(Shard, "peek_group", watched)
    exchange = LocalLookahead(Shard(TABLES, seed=SEED))
    first = exchange.lookup([request(0, [1, 2, 3], [1])], create=True)
    second = exchange.lookup([request(0, [3, 4], [2]), request(1, [1])], create=True)
    third = exchange.lookup([request(0, [4, 2, 9], [1])], create=True)
    waited = []
    for lookup in (first, second, third):
        rows = lookup.result()
        waited.append(third.rows.done())
        exchange.apply(lookup, [np.ones_like(one) for one in rows], lr_scale=1.0)
    fourth = exchange.lookup([request(0, [2], [])], create=True)
    fifth = exchange.lookup([request(0, [1, 2, 3], [])], create=True)  # 1 and 3 changed before it
    exchange.apply(fourth, [np.ones((1, 4), np.float32)], lr_scale=1.0)
    fifth.result()
    assert [ids for ids in again if ids] == [[3], [4, 2, 1], [2]]
    assert waited == [False, False, True]
    exchange.close()
