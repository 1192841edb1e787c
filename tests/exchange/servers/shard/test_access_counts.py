"""Shards count each row that a step uses once in its bucket, and forget in time; the oracle is `bincount`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.exchange import Exchange, LookupRequest
from satrap.exchange.lookahead import with_lookahead
from satrap.exchange.servers import ServersExchange, ShardServer
from satrap.exchange.servers.shard.access_counts import HALF_LIFE, AccessCounts
from satrap.schema import Table
from satrap.store import BUCKETS, bucket_of
from tests.contract.parties import connect, gradients_for, random_requests, request, threads
from tests.exchange.servers.moving import move, scattered

GROUPS = (("a", "b"), ("c",))


def oracle(requests: Sequence[LookupRequest]) -> np.ndarray:
    """Ids by bucket, counted one table after another."""
    counts = np.zeros(BUCKETS)
    for each in requests:
        for t, table in enumerate(GROUPS[each.group]):
            ids = each.ids[each.splits[t] : each.splits[t + 1]]
            counts += np.bincount(bucket_of(table, ids), minlength=BUCKETS)
    return counts


def use(exchange: Exchange, steps: int, seed: int = 0, ahead: int = 0) -> list[LookupRequest]:
    """Look rows up and update them, some lookups ahead; return the requests."""
    rng, flying, wanted = np.random.default_rng(seed), [], []
    for step in range(steps + ahead):
        if step < steps:
            requests = random_requests(rng)
            flying.append((exchange.lookup(requests, create=True), gradients_for(rng, requests)))
            wanted += requests
        if step >= ahead:
            lookup, gradients = flying[step - ahead]
            lookup.result()
            exchange.apply(lookup, gradients, lr_scale=1.0)
    exchange.flush()
    return wanted


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 2000), st.integers(0, 10**6)), max_size=8))
def test_a_use_counts_half_after_each_half_life(times: list[tuple[float, int]]) -> None:
    now = [1000.0]
    uses, expected = AccessCounts(GROUPS, lambda: now[0]), np.zeros(BUCKETS)
    for seconds, seed in times:
        now[0] += seconds
        expected *= 0.5 ** (seconds / HALF_LIFE)
        for one in random_requests(np.random.default_rng(seed)):
            uses.count(one.group, one.ids, one.splits)
            expected += oracle([one])
    np.testing.assert_allclose(uses.lately(), expected, rtol=0.003 * (len(times) + 1), atol=1e-12)
    uses.clear()
    assert not uses.lately().any()


@pytest.mark.parametrize("ahead", [0, 3])
def test_each_row_of_a_step_counts_once_and_what_is_only_read_does_not(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("satrap.exchange.servers.shard.access_counts.HALF_LIFE", 1e12)
    with threads(3) as servers:
        exchange: Exchange = connect([server.address for server in servers])
        moves = exchange.moves
        if ahead:
            exchange = with_lookahead(exchange)
        used = use(exchange, 20, ahead=ahead)
        exchange.lookup(used[:2], create=False).result()
        exchange.prefetch(used[:2])
        exchange.flush()
        np.testing.assert_allclose(moves.uses_by_bucket(), oracle(used), rtol=1e-6)
        exchange.close()


def test_each_worker_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("satrap.exchange.servers.shard.access_counts.HALF_LIFE", 1e12)
    with threads(2) as servers:
        addresses = [server.address for server in servers]
        ranks = [connect(addresses, mode="sync", rank=rank, world=2) for rank in range(2)]
        used = []
        for step in range(5):
            for rank, exchange in enumerate(ranks):
                rng = np.random.default_rng(10 * step + rank)
                used += (wanted := random_requests(rng))
                lookup = exchange.lookup(wanted, create=True)
                lookup.result()
                exchange.apply(lookup, gradients_for(rng, wanted), lr_scale=1.0)
        for exchange in ranks:
            exchange.flush()
        np.testing.assert_allclose(ranks[0].moves.uses_by_bucket(), oracle(used), rtol=1e-6)
        for exchange in ranks:
            exchange.close()


def test_rows_that_are_frozen_count_when_they_are_asked_for() -> None:
    tables = [Table("a", dim=4, frozen=True)]
    with threads(2) as servers:
        exchange = connect([server.address for server in servers], tables=tables)
        wanted = [request(0, list(range(100)))]
        for _ in range(3):
            exchange.lookup(wanted, create=True).result()
        expected = 3 * np.bincount(bucket_of("a", wanted[0].ids), minlength=BUCKETS)
        np.testing.assert_allclose(exchange.moves.uses_by_bucket(), expected, rtol=0.01)
        exchange.close()


def of(server: ShardServer) -> np.ndarray:
    return server.service._rows.uses.lately()


def test_a_bucket_keeps_its_uses_when_it_moves_and_all_begin_anew_when_a_shard_leaves() -> None:
    with threads(3) as servers:
        addresses = [server.address for server in servers]
        exchange: ServersExchange = connect(addresses[:2])
        used = use(exchange, 10, seed=1)
        move([exchange], exchange.map.after(scattered([0, 1, 2], 1), [0, 1, 2]), {2: addresses[2]})
        assert not of(servers[2]).any()
        np.testing.assert_allclose(exchange.moves.uses_by_bucket(), oracle(used), rtol=0.1)
        used += use(exchange, 10, seed=2)
        assert of(servers[2]).sum() > 100
        np.testing.assert_allclose(exchange.moves.uses_by_bucket(), oracle(used), rtol=0.1)
        move([exchange], exchange.map.after(scattered([0, 2], 2), [0, 2]))
        assert not exchange.moves.uses_by_bucket().any()
        used = use(exchange, 10, seed=3)
        np.testing.assert_allclose(exchange.moves.uses_by_bucket(), oracle(used), rtol=0.1)
        exchange.close()


def test_rows_and_their_bytes_are_counted_by_bucket() -> None:
    """Weights and Adagrad's state of 4 numbers take 32 bytes, of 17 numbers 136, or what it is padded to."""
    with threads(2) as servers:
        exchange = connect([server.address for server in servers])
        ids = np.arange(500, dtype=np.uint64)
        exchange.lookup([request(0, ids, ids[:100]), request(1, ids[:50])], create=True).result()
        rows, size = exchange.moves.rows_by_bucket()
        by_table = [
            np.bincount(bucket_of(t, ids[:n]), minlength=BUCKETS)
            for t, n in zip("abc", (500, 100, 50), strict=True)
        ]
        np.testing.assert_array_equal(rows, sum(by_table))
        narrow, wide = (group.row_bytes for group in servers[0].service.store.groups)
        assert narrow >= 4 * (4 + 4)
        assert wide >= 4 * (17 + 17)
        np.testing.assert_array_equal(size, narrow * (by_table[0] + by_table[1]) + wide * by_table[2])
        exchange.close()
