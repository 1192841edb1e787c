"""Lookup t + τ is issued before item t is handed out, and no later one."""

from __future__ import annotations

from collections import deque

import pytest

from satrap.errors import ConfigError
from satrap.train.schedule import Hybrid, Sync, lookahead, schedule_of


@pytest.mark.parametrize(("mode", "given", "expected"), [("sync", 4, 0), ("hybrid", 4, 4), ("async", 0, 0)])
def test_staleness_is_that_of_the_mode(mode: str, given: int, expected: int) -> None:
    assert schedule_of(mode, given).staleness == expected


def test_staleness_grows_to_its_value() -> None:
    hybrid = schedule_of("hybrid", 4)
    assert [hybrid.ahead(t) for t in (0, 19, 20, 39, 40, 79, 80, 10**9)] == [0, 0, 1, 1, 2, 3, 4, 4]
    assert [schedule_of("hybrid", 4, warmup=6).ahead(t) for t in range(8)] == [0, 0, 1, 2, 2, 3, 4, 4]
    assert schedule_of("async", 4, warmup=0).ahead(0) == 4
    assert schedule_of("sync", 4, lookahead=3).ahead(0) == 3  # what it patches is never stale


def test_without_a_word_nothing_begins_small_and_nothing_is_early() -> None:
    assert (Hybrid(4).ahead(0), Sync().ahead(0), Sync().staleness) == (4, 0, 0)
    assert schedule_of("sync", 4).ahead(0) == 0


def test_what_is_no_mode_or_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="'fast' is unknown") as caught:
        schedule_of("fast", 0)
    assert "sync, hybrid, async" in str(caught.value)
    for mode in ("sync", "hybrid"):
        with pytest.raises(ConfigError, match="must be >= 0, got -1"):
            schedule_of(mode, -1)


@pytest.mark.parametrize("staleness", [0, 1, 3, 10])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_each_item_comes_once_in_order_after_the_lookups_it_may_miss(staleness: int, count: int) -> None:
    order: list[tuple[str, int]] = []

    def issue(item: int) -> str:
        order.append(("lookup", item))
        return f"rows {item}"

    ahead: deque[tuple[int, str]] = deque()
    for item, rows in lookahead(range(count), issue, lambda _: staleness, ahead):
        assert rows == f"rows {item}"
        assert list(ahead) == [(n, f"rows {n}") for n in range(item + 1, min(item + 1 + staleness, count))]
        order.append(("step", item))
    assert [item for kind, item in order if kind == "step"] == list(range(count))
    for item in range(count):
        before = [n for kind, n in order[: order.index(("step", item))] if kind == "lookup"]
        assert before == list(range(min(item + staleness + 1, count)))


def test_lookups_run_ahead_by_what_their_number_allows() -> None:
    order: list[tuple[str, int]] = []
    growing = lookahead(range(40, 80), lambda t: order.append(("lookup", t)), lambda t: t // 20, start=40)
    for item, _ in growing:
        order.append(("step", item))
    for t in range(42, 80):
        steps = [n for kind, n in order[: order.index(("lookup", t))] if kind == "step"]
        assert steps == list(range(40, t - t // 20))


def test_the_queue_is_hidden_if_nobody_wants_to_see_it() -> None:
    assert list(lookahead(list("abc"), str.upper, lambda _: 2)) == [("a", "A"), ("b", "B"), ("c", "C")]
