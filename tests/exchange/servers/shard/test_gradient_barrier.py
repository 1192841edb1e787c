"""One optimizer step of all ranks: complete only with all, summed in rank order."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.exchange.lookup import Array, LookupRequest
from satrap.exchange.servers.shard.gradient_barrier import GradientBarrier, WorkerGradients, merge


def update(group: int, tables: list[dict[int, float]]) -> tuple[LookupRequest, Array]:
    ids = np.array([i for t in tables for i in t], np.uint64)
    splits = np.cumsum([0, *map(len, tables)]).astype(np.int64)
    gradients = np.array([[g, -g] for t in tables for g in t.values()], np.float32).reshape(-1, 2)
    return LookupRequest(group, ids, splits), gradients


def share(*updates: tuple[LookupRequest, Array]) -> WorkerGradients:
    return WorkerGradients([r for r, _ in updates], [g for _, g in updates], 1.0)


def test_merge_sums_equal_ids_of_equal_tables_in_order() -> None:
    shares = [
        share(update(0, [{1: 1e8, 2: 1.0}, {1: 5.0}]), update(1, [{9: 1.0}])),
        share(update(0, [{1: -1e8, 3: 2.0}, {}])),
        share(update(0, [{1: 0.5}, {7: 1.0}])),
    ]
    merged = merge(shares)
    first, second = merged.requests
    assert (first.group, second.group) == (0, 1)
    np.testing.assert_array_equal(first.ids, np.array([1, 2, 3, 1, 7], np.uint64))
    np.testing.assert_array_equal(first.splits, [0, 3, 5])
    # (1e8 - 1e8) + 0.5: in any other order float32 gives 0
    np.testing.assert_array_equal(merged.gradients[0][:, 0], [0.5, 1.0, 2.0, 5.0, 1.0])
    np.testing.assert_array_equal(second.ids, [9])


def test_a_step_is_complete_with_the_last_rank_and_in_rank_order() -> None:
    board = GradientBarrier()
    for rank in range(3):
        board.join(rank, 3)
    shares = [WorkerGradients([], [], float(r)) for r in range(3)]
    assert board.offer(2, 0, shares[2]) is None
    assert board.offer(0, 0, shares[0]) is None
    assert board.missing() == [1]
    assert board.offer(1, 0, shares[1]) == shares
    assert (board.completed, board.missing()) == (1, [0, 1, 2])


def test_a_second_share_or_another_step_is_refused() -> None:
    board = GradientBarrier()
    board.join(0, 2)
    board.offer(0, 0, WorkerGradients([], [], 1.0))
    with pytest.raises(StoreError, match="rank 0 sent gradients of step 0 while step 0 is open"):
        board.offer(0, 0, WorkerGradients([], [], 1.0))
    with pytest.raises(StoreError, match="rank 1 sent gradients of step 4 while step 0 is open"):
        board.offer(1, 4, WorkerGradients([], [], 1.0))
    board.join(0, 2)  # a new worker of the rank: the old one's share is gone
    assert board.missing() == [0, 1]
