"""A lookup goes back to the exchange that issued it."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.exchange import Exchange, LocalExchange, Lookup, LookupRequest
from satrap.exchange.lookup import answered
from satrap.store import Shard
from tests.contract.parties import SEED, TABLES, connect, local, random_requests, request, threads


def test_the_lookup_of_another_exchange_is_refused() -> None:
    with threads(1) as [server]:
        exchanges: list[Exchange] = [local(), local(), connect([server.address])]
        for mine, theirs in zip(exchanges, [*exchanges[1:], exchanges[0]], strict=True):
            lookup = mine.lookup([request(1, [1])], create=True)
            [rows] = lookup.result()
            with pytest.raises(StoreError, match="another exchange"):
                theirs.apply(lookup, [np.ones_like(rows)], lr_scale=1.0)
            theirs.flush()
            assert theirs.telemetry.statistics().refused == 0
        for exchange in exchanges:
            exchange.close()


def test_each_request_is_split_and_each_row_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Shard(TABLES, seed=SEED)
    wanted = random_requests(np.random.default_rng(1))
    with closing(LocalExchange(store)) as exchange:
        lookup = exchange.lookup(wanted, create=True)
        gradients = [np.ones_like(rows) for rows in lookup.result()]
        for group in store.groups:
            monkeypatch.setattr(group.directory, "find", None)  # the update has the places already
        exchange.apply(lookup, gradients, lr_scale=1.0)
        exchange.flush()
        monkeypatch.undo()
        after = exchange.lookup(wanted, create=False).result()
        assert all((a != b).all() for a, b in zip(after, lookup.result(), strict=True))
    with threads(2) as servers, closing(connect([s.address for s in servers])) as remote:
        lookup = remote.lookup(wanted, create=True)
        lookup.result()
        monkeypatch.setattr(remote.splitter, "split", None)
        remote.apply(lookup, gradients, lr_scale=1.0)
        remote.flush()


def test_any_exchange_takes_the_update_of_a_lookup_that_nobody_issued() -> None:
    ids = LookupRequest(1, np.array([4], np.uint64), np.array([0, 1]))
    with closing(local()) as exchange:
        [rows] = exchange.lookup([ids], create=True).result()
        for lookup in (Lookup([ids]), answered([ids], [rows])):
            exchange.apply(lookup, [np.ones_like(rows)], lr_scale=1.0)
        exchange.flush()
        [(_, chunk)] = exchange.rows.cut(still=True)
        assert (chunk.state == 2).all()
