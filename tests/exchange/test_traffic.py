"""What a caller's requests met, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.exchange.protocol import Request
from satrap.exchange.traffic import REMEMBERED, Traffic


def requests() -> list[Request]:
    return [Request(0, np.array([1], np.uint64), np.array([0, 1]))]


def step(
    traffic: Traffic, looked_up: dict[int, tuple[int, int]], applied: dict[int, tuple[int, int]]
) -> None:
    """One lookup and its update; per shard (own updates, all updates) it had applied before each."""
    wanted = requests()
    traffic.issue("lookup")()
    for shard, seen in looked_up.items():
        traffic.looked_up(wanted, shard, seen)
    done = traffic.issue("push", wanted)
    for shard, seen in applied.items():
        traffic.applied(wanted, shard, seen)
    done()


def test_between_a_lookup_and_its_update_lie_those_it_missed() -> None:
    traffic = Traffic()
    step(traffic, {0: (0, 0)}, {0: (0, 0)})
    step(traffic, {0: (1, 4)}, {0: (3, 11)})
    step(traffic, {0: (4, 12)}, {0: (6, 19)})
    assert traffic.report()["staleness"] == {"own": {0: 1, 2: 2}, "others": {0: 1, 5: 2}}


def test_of_several_shards_the_largest_number_counts() -> None:
    traffic = Traffic()
    step(traffic, {0: (1, 1), 1: (1, 1), 2: (1, 1)}, {0: (2, 5), 1: (4, 5), 2: (1, 2)})
    assert traffic.report()["staleness"] == {"own": {3: 1}, "others": {3: 1}}


def test_a_shard_that_started_anew_counts_nothing() -> None:
    traffic = Traffic()
    step(traffic, {0: (9, 9)}, {0: (0, 0)})
    step(traffic, {0: (9, 9)}, {1: (10, 10)})
    step(traffic, {}, {0: (10, 10)})
    assert traffic.report()["staleness"] == {"own": {}, "others": {}}


def test_requests_without_an_answer_are_in_flight() -> None:
    traffic = Traffic()
    answered, _, pushed = traffic.issue("lookup"), traffic.issue("lookup"), traffic.issue("push", requests())
    assert traffic.report()["lookup_seconds"] == 0
    answered()
    found = traffic.report()
    assert (found["lookup_count"], found["lookup_in_flight"]) == (1, 1)
    assert (found["push_count"], found["push_in_flight"]) == (0, 1)
    assert found["lookup_seconds"] > 0 == found["push_seconds"]
    pushed()
    found = traffic.report()
    assert (found["push_count"], found["push_in_flight"], found["lookup_in_flight"]) == (1, 0, 1)
    assert found["push_seconds"] > 0


def test_a_batch_without_ids_has_no_staleness() -> None:
    traffic = Traffic()
    traffic.looked_up([], 0, (0, 0))
    traffic.applied([], 0, (1, 1))
    traffic.issue("push", [])()
    assert traffic.report()["staleness"] == {"own": {}, "others": {}}


@pytest.mark.parametrize(("more", "counted"), [(REMEMBERED - 1, 1), (REMEMBERED, 0)])
def test_a_lookup_without_an_update_is_forgotten_in_time(more: int, counted: int) -> None:
    traffic, first = Traffic(), requests()
    traffic.looked_up(first, 0, (0, 0))
    kept = [requests() for _ in range(more)]
    for wanted in kept:
        traffic.looked_up(wanted, 0, (0, 0))
    done = traffic.issue("push", first)
    traffic.applied(first, 0, (0, 0))
    done()
    assert sum(traffic.report()["staleness"]["own"].values()) == counted
