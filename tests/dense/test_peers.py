"""One of two peers asks a store, and both get its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from satrap import optim
from satrap.dense import Workers
from satrap.dense.peers import PeerExchange, for_group
from satrap.errors import StoreError
from satrap.exchange import LocalExchange, Request
from satrap.exchange.protocol import Exchange
from satrap.schema import Table
from satrap.store import Shard
from tests.dense.threads import together

TABLES = [
    Table("user", dim=4, optimizer=optim.SGD(lr=1.0), initial_scale=0.5),
    Table("item", dim=2, optimizer=optim.SGD(lr=1.0), initial_scale=0.5),
]


def ask(exchange: Exchange, *ids: int) -> list[Request]:
    array = np.array(ids, np.uint64)
    return [Request(group.index, array, np.array([0, len(ids)], np.int64)) for group in exchange.groups]


def work(exchange: Exchange) -> Any:
    """Look up two steps ahead, update, refuse, look up again."""
    first, second = (exchange.lookup(ask(exchange, *ids), create=True) for ids in ((1, 2), (2, 3, 4)))
    seen = [np.asarray(rows).copy() for lookup in (first, second) for rows in lookup.result()]
    again = [np.asarray(rows) for rows in second.distinct()]
    for rows, same in zip(seen[2:], again, strict=True):
        assert np.array_equal(rows, same)
    exchange.update(first, [np.ones((2, 4), np.float32), np.ones((2, 2), np.float32)], lr_scale=0.5)
    exchange.update(None, [], lr_scale=1.0)
    exchange.flush()
    last = exchange.lookup(ask(exchange, 1, 2, 3), create=False)
    return [*(rows.tolist() for rows in seen), *(np.asarray(rows).tolist() for rows in last.result())]


def test_peers_see_what_one_process_sees() -> None:
    alone = LocalExchange(Shard(TABLES, seed=0))
    expected = work(alone)
    alone.close()

    def peer(workers: Workers) -> Any:
        exchange = for_group(workers, lambda tables: LocalExchange(Shard(tables, seed=0)))(TABLES)
        found = work(exchange)
        exchange.prefetch(ask(exchange, 1))
        rows = sum(len(chunk.ids) for _, chunk in exchange.durability.snapshot())
        exchange.close()
        return found, rows, exchange.collective, [(g.index, g.tables, g.dim) for g in exchange.groups]

    (first, held, *one), (second, none, *other) = together(2, peer)
    assert first == expected
    assert second == expected
    assert (held, none) == (8, 0)
    assert one == other
    assert one[0] is False


def test_an_exchange_of_one_is_left_alone() -> None:
    def make(tables: Any) -> Exchange:
        raise AssertionError

    assert for_group(Workers().tensor, make) is make


def test_a_lookup_of_another_exchange_is_refused() -> None:
    def peer(workers: Workers) -> str:
        inner = None if workers.rank else LocalExchange(Shard(TABLES, seed=0))
        mine = PeerExchange(inner, workers)
        yours = PeerExchange(inner, workers)
        lookup = mine.lookup(ask(mine, 1), create=True)
        with pytest.raises(StoreError) as caught:
            yours.update(lookup, [], lr_scale=1.0)
        lookup.result()
        mine.refuse()
        mine.close()
        return str(caught.value.what)

    assert len(set(together(2, peer))) == 1
