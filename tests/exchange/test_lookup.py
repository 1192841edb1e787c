"""A lookup goes back to the exchange that issued it."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from satrap.errors import StoreError
from satrap.exchange import Exchange, LocalExchange, Lookup, LookupRequest
from satrap.exchange.lookup import answered, joined
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


def test_a_joined_future_is_complete_with_its_last_part_or_the_first_error() -> None:
    def parts() -> list[Future[Any]]:
        return [Future(), Future()]

    first, second = made = parts()
    whole = joined(made, lambda a, b: [a, b])
    second.set_result(2)
    assert not whole.done()
    first.set_result(1)
    assert whole.result(0) == [1, 2]
    first, second = made = parts()
    whole = joined(made, lambda a, b: [a, b])
    second.set_exception(ValueError("lost"))
    with pytest.raises(ValueError, match="lost"):
        whole.result(0)
    first.set_result(1)

    def refuse(a: int, b: int) -> list[Any]:
        raise StoreError(f"{a + b} is too much")

    first, second = made = parts()
    first.set_result(1)
    second.set_result(2)
    with pytest.raises(StoreError, match="3 is too much"):
        joined(made, refuse).result(0)
