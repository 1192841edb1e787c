"""Orders and answers are plain values; by default they ask for, and tell of, nothing."""

from __future__ import annotations

from dataclasses import asdict

from satrap.exchange.shard_map import ShardMap
from satrap.train.resharding.requests import MEASURES, ReshardRequest, ReshardResult


def test_an_order_of_nothing_moves_nothing_and_an_answer_without_an_error_is_good() -> None:
    assert asdict(ReshardRequest("x")) == {
        "id": "x",
        "leave": (),
        "join": {},
        "epoch": 0,
        "survey": False,
        "by": "rows",
    }
    assert MEASURES == ("rows", "bytes", "traffic")
    answer = ReshardResult("x", ShardMap(2))
    told = {"id": "x", "map": answer.map, "error": None, "rows": {}, "bytes": {}, "traffic": {}}
    counts = ("carried", "carried_bytes", "buckets", "seconds", "pauses", "paused")
    assert {name: getattr(answer, name) for name in ReshardResult.__slots__} == told | dict.fromkeys(
        counts, 0
    )
