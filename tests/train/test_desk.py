"""Orders and answers are plain values; by default they ask for, and tell of, nothing."""

from __future__ import annotations

from satrap.exchange.shard_map import ShardMap
from satrap.train.desk import MEASURES, Moved, Order


def test_an_order_of_nothing_moves_nothing_and_an_answer_without_an_error_is_good() -> None:
    order, answer = Order("x"), Moved("x", ShardMap(2))
    assert (order.leave, dict(order.join), order.survey, order.by) == ((), {}, False, "rows")
    assert MEASURES == ("rows", "bytes", "traffic")
    assert dict(answer.traffic) == {}
    assert (answer.error, answer.carried, answer.buckets, dict(answer.rows)) == (None, 0, 0, {})
