"""Admission and eviction behind every exchange."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap.errors import ConfigError, StoreError
from satrap.exchange import Exchange, Lookup, LookupRequest
from satrap.store import Admission, Eviction, StoreConfig, Tier
from tests.contract.parties import (
    SEED,
    TABLES,
    assert_equal_contents,
    connect,
    contents,
    local,
    request,
    threads,
    train,
)
from tests.exchange.collective.parties import collective
from tests.support.covering import covering

KINDS = ["local", "servers-1", "servers-2", "collective-2"]
ONE_SHARD = pytest.param("servers-1", marks=pytest.mark.slow)
MEMORY = 1 << 20
TIERED, TIER = 8 << 20, 8 << 20
"""Memory that holds the index of a tier of so many bytes, and some 15,000 rows of a and b."""


def opened(kind: str, **arguments: Any) -> Iterator[Exchange]:
    if kind == "local":
        made: Exchange = local(**arguments)
        yield made
        made.close()
        return
    if kind.startswith("collective"):
        with collective(int(kind[-1]), TABLES, StoreConfig(seed=SEED, **arguments)) as made:
            yield made
        return
    with threads(int(kind[-1])) as servers:
        made = connect([s.address for s in servers], **arguments)
        yield made
        made.close()


@pytest.mark.parametrize(
    ("kind", "admission"),
    covering(
        KINDS,
        [Admission(min_count=2, probability=0.7), Admission(min_count=2), Admission(probability=0.4)],
    ),
)
def test_admission_is_that_of_one_store_to_the_bit(kind: str, admission: Admission) -> None:
    other = local(admission=admission)
    for exchange in opened(kind, admission=admission):
        for mine, theirs in zip(
            train(exchange, steps=12, seed=5, ahead=2), train(other, steps=12, seed=5, ahead=2), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)
        assert_equal_contents(exchange, other)
        for table in "abc":
            one, its = (e.telemetry.statistics().tables[table] for e in (exchange, other))
            assert one.unadmitted == its.unadmitted > 0
            assert one.dropped == its.dropped > 0
            assert one.created == its.created > 0
    other.close()


@pytest.mark.parametrize("kind", ["local", "servers-1"])
def test_a_lookup_that_is_refused_makes_rows_of_no_group(kind: str) -> None:
    """Of another group it may be that there is no room, or that the request is wrong."""
    for exchange in opened(kind, memory=MEMORY):
        good, ids = request(0, [1, 2], [3]), np.arange(3, dtype=np.uint64)
        for bad in (
            request(1, list(range(100_000))),
            request(9, [1]),
            LookupRequest(1, ids, np.array([0, 2])),
        ):
            with pytest.raises(StoreError):
                exchange.lookup([good, bad], create=True).result()
            assert exchange.telemetry.statistics().rows == 0
        exchange.lookup([good, request(1, list(range(1000)))], create=True).result()
        full = request(1, list(range(999_000, 1_100_000)))
        with pytest.raises(StoreError, match="no room for 101000 more rows"):
            exchange.lookup([request(0, [4], []), full], create=True).result()
        assert exchange.telemetry.statistics().rows == 1003


@pytest.mark.parametrize(
    ("kind", "eviction"),
    covering(KINDS, [Eviction("lru"), Eviction("lfu"), Eviction("ttl", ttl=5)]),
)
def test_rows_go_and_come_back_as_new(kind: str, eviction: Eviction) -> None:
    for exchange in opened(kind, memory=MEMORY, eviction=eviction):
        key = [request(0, [7], []), request(1, [])]
        [first, _] = exchange.lookup(key, create=True).result()
        exchange.apply(Lookup(key), [np.ones((1, 4), np.float32), np.ones((0, 17), np.float32)], lr_scale=1.0)
        for start in range(1000, 61_000, 2000):
            exchange.lookup([request(0, list(range(start, start + 2000)), [])], create=True).result()
        for _ in range(40):  # ttl: the time of the last ones is over, too
            exchange.lookup([request(0, [], [1])], create=True).result()
        found = exchange.telemetry.statistics()
        assert found.bytes <= MEMORY
        counts = found.tables["a"]
        assert counts.created - counts.evicted == counts.rows < 30_000
        assert 7 not in contents(exchange)["a"][0] if counts.rows else True
        exchange.apply(Lookup(key), [np.ones((1, 4), np.float32), np.ones((0, 17), np.float32)], lr_scale=1.0)
        exchange.flush()
        assert exchange.telemetry.statistics().tables["a"].dropped == 1
        [again, _] = exchange.lookup(key, create=True).result()
        np.testing.assert_array_equal(again, first)
        ids, _, state = contents(exchange)["a"]
        np.testing.assert_array_equal(state[ids == 7], np.zeros((1, 4)))


def test_one_shard_evicts_what_one_process_does() -> None:
    arguments = {
        "memory": MEMORY // 4,
        "eviction": Eviction("lru"),
        "admission": Admission(min_count=2, memory=4096),
    }
    other = local(**arguments)
    train(other, steps=60, seed=4, ahead=2)
    for exchange in opened("servers-1", **arguments):
        train(exchange, steps=60, seed=4, ahead=2)
        assert_equal_contents(exchange, other)
        assert exchange.telemetry.statistics().tables["c"].evicted > 0
    other.close()


@pytest.mark.parametrize("kind", [ONE_SHARD if kind == "servers-1" else kind for kind in KINDS])
def test_with_a_tier_rows_are_those_of_a_store_with_enough_memory(kind: str, tmp_path: Path) -> None:
    other, tier = local(), Tier(str(tmp_path), TIER)
    for exchange in opened(kind, memory=TIERED, eviction=Eviction("lru"), tier=tier):
        for one in (exchange, other):
            rng = np.random.default_rng(0)
            for _ in range(20):
                keys = rng.choice(30_000, 4_000, replace=False).tolist()
                wanted = [request(0, keys[:2_500], keys[1_500:]), request(1, keys[:1_000])]
                one.prefetch(wanted)
                lookup = one.lookup(wanted, create=True)
                lookup.result()
                gradients = [rng.standard_normal((len(r.ids), (4, 17)[r.group])) for r in wanted]
                one.apply(lookup, [g.astype(np.float32) for g in gradients], lr_scale=1.0)
            one.flush()
        assert_equal_contents(exchange, other)
        found, expected = exchange.telemetry.statistics(), other.telemetry.statistics()
        assert found.tier.rows > 20_000
        for table in "abc":
            for name in ("rows", "created", "evicted", "hits", "misses", "dropped"):
                assert getattr(found.tables[table], name) == getattr(expected.tables[table], name)
        exchange.rows.clear()
        assert exchange.telemetry.statistics().tier.rows == 0
    other.close()


@pytest.mark.parametrize("kind", [ONE_SHARD if kind == "servers-1" else kind for kind in KINDS])
def test_rows_of_ids_named_ahead_are_read_before_they_are_looked_up(kind: str, tmp_path: Path) -> None:
    keys = [request(0, list(range(5_000)), []), request(1, [])]
    later = [request(0, list(range(20_000, 60_000)), []), request(1, [])]
    for exchange in opened(kind, memory=TIERED, eviction=Eviction("lru"), tier=Tier(str(tmp_path), TIER)):
        for wanted in (keys, later):  # of which the first have left memory then
            exchange.lookup(wanted, create=True).result()
        inside = exchange.telemetry.statistics().tier.rows
        for _ in range(3):  # as a network that doubles would
            exchange.prefetch(keys)
        named = settled(exchange, more_than=1_000)
        assert exchange.telemetry.statistics().tier.rows == inside
        assert exchange.telemetry.statistics().tier.prefetch_hits == 0
        exchange.lookup(keys, create=True).result()
        tier = exchange.telemetry.statistics().tier
        assert tier.prefetch_hits == tier.prefetched == named <= 5_000


def settled(exchange: Exchange, *, more_than: int) -> int:
    """Return how many rows were asked for ahead once they are more than a limit and grow no more."""
    before, deadline = -1, time.monotonic() + 20
    while time.monotonic() < deadline:
        now: int = exchange.telemetry.statistics().tier.prefetched
        if now == before > more_than:
            return now
        before = now
        time.sleep(0.1)
    raise AssertionError(f"it stayed at {before}")


def test_shards_without_a_tier_are_sent_no_ids_ahead() -> None:
    with threads(2) as servers:
        exchange = connect([s.address for s in servers])
        before = sum(s.counters.messages for s in servers)
        exchange.prefetch([request(0, [1, 2, 3], []), request(1, [])])
        exchange.flush()
        assert sum(s.counters.messages for s in servers) == before + 2  # the flush of each
        exchange.close()


def test_workers_must_agree_on_them() -> None:
    with threads(1) as servers:
        first = connect([servers[0].address], memory=MEMORY, eviction=Eviction("lru"))
        for other in (
            {},
            {"eviction": Eviction("lfu")},
            {"eviction": Eviction("lru"), "admission": Admission(2)},
        ):
            with pytest.raises(ConfigError, match=r"configured differently: (eviction|admission)"):
                connect([servers[0].address], memory=MEMORY, **other)
        first.close()


def test_what_a_store_refuses_the_hello_refuses() -> None:
    with threads(1) as servers, pytest.raises(ConfigError, match="needs a memory budget"):
        connect([servers[0].address], eviction=Eviction("lru"))
