"""One of two peers asks a store, and both get its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from satrap import optim
from satrap.dense import Workers
from satrap.errors import ConfigError, StoreError
from satrap.exchange import LocalExchange, Lookup, LookupRequest
from satrap.exchange.protocol import Exchange, StepVerdict
from satrap.exchange.telemetry import RequestTotals, Traffic
from satrap.exchange.wrappers.broadcast import PeerExchange, for_group
from satrap.schema import Table
from satrap.store import Shard
from tests.contract.parties import threads
from tests.dense.threads import together
from tests.exchange.joining import connecting

TABLES = [
    Table("user", dim=4, optimizer=optim.SGD(lr=1.0), initial_scale=0.5),
    Table("item", dim=2, optimizer=optim.SGD(lr=1.0), initial_scale=0.5),
]


def ask(exchange: Exchange, *ids: int) -> list[LookupRequest]:
    array = np.array(ids, np.uint64)
    return [LookupRequest(group.index, array, np.array([0, len(ids)], np.int64)) for group in exchange.groups]


def work(exchange: Exchange) -> Any:
    """Look up two steps ahead, update, refuse, look up again."""
    first, second = (exchange.lookup(ask(exchange, *ids), create=True) for ids in ((1, 2), (2, 3, 4)))
    seen = [np.asarray(rows).copy() for lookup in (first, second) for rows in lookup.result()]
    again = [np.asarray(rows) for rows in second.unpooled_rows()]
    for rows, same in zip(seen[2:], again, strict=True):
        assert np.array_equal(rows, same)
    exchange.apply(first, [np.ones((2, 4), np.float32), np.ones((2, 2), np.float32)], lr_scale=0.5)
    exchange.apply(Lookup(()), [], lr_scale=1.0)
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
        rows = sum(len(chunk.ids) for _, chunk in exchange.rows.cut(still=True))
        exchange.close()
        return found, rows, exchange.collective, [(g.index, g.tables, g.dim) for g in exchange.groups]

    (first, held, *one), (second, none, *other) = together(2, peer)
    assert first == expected
    assert second == expected
    assert (held, none) == (8, 0)
    assert one == other
    assert one[0] is False


class Told(LocalExchange):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__(Shard([*TABLES, Table("kept", dim=4, frozen=True)], seed=0))
        self.told: list[Any] = []

    def prefetch(self, requests: Sequence[LookupRequest]) -> None:
        self.told.append([request.group for request in requests])

    def flush(self) -> None:
        self.told.append("flush")

    def apply(
        self,
        lookup: Any,
        gradients: Sequence[Any],
        *,
        lr_scale: float,
        verdict: StepVerdict | None = None,
    ) -> None:
        self.told.append((lookup, list(gradients), lr_scale, verdict))

    def close(self) -> None:
        self.told.append("close")
        super().close()


VERDICT = StepVerdict(True, lambda: True)


def test_the_first_peer_alone_tells_the_exchange_everything() -> None:
    def peer(workers: Workers) -> list[Any]:
        inner = None if workers.rank else Told()
        exchange = PeerExchange(inner, workers)
        lookup = exchange.lookup(ask(exchange, 1), create=True)
        lookup.result()
        exchange.prefetch(ask(exchange, 1))
        exchange.apply(lookup, [7], lr_scale=0.5, verdict=VERDICT)
        exchange.flush()
        groups = list(exchange.groups)
        exchange.close()
        return [groups, inner]

    (groups, inner), (others, nothing) = together(2, peer)
    assert groups == others == list(inner.groups)
    assert [group.frozen for group in groups].count(True) == 1
    asked, (lookup, *update), *rest = inner.told
    assert asked == [group.index for group in groups]
    assert isinstance(lookup, Lookup)
    assert update == [[7], 0.5, VERDICT]
    assert rest == ["flush", "close"]
    assert nothing is None


def test_a_peer_that_asks_nobody_has_nothing_to_save_or_count() -> None:
    def peer(workers: Workers) -> None:
        inner = None if workers.rank else Told()
        exchange = PeerExchange(inner, workers)
        if inner is not None:
            assert exchange.rows is inner.rows
            assert exchange.telemetry is inner.telemetry
            inner.close()
            return
        cut = exchange.rows.cut()
        assert (cut.counts, cut.write(None, ""), cut.deleted) == ({}, {}, {})  # type: ignore[arg-type]
        assert list(exchange.rows.cut(still=True)) == []
        assert exchange.telemetry.traffic() == Traffic({}, {}, RequestTotals(), RequestTotals())

    together(2, peer)


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
            yours.apply(lookup, [], lr_scale=1.0)
        lookup.result()
        mine.apply(lookup, [], lr_scale=1.0)
        mine.close()
        return str(caught.value.what)

    assert len(set(together(2, peer))) == 1


def test_replicas_beside_shard_servers_are_refused_at_both_peers() -> None:
    with threads(1) as servers:
        connect = connecting([server.address for server in servers], 1, replicated=["item"])

        def peer(workers: Workers) -> ConfigError:
            with pytest.raises(
                ConfigError, match="replicated tables next to shard servers cannot be combined"
            ) as caught:
                for_group(workers, lambda tables: connect(0, tables))(TABLES)
            return caught.value

        assert len({str(error) for error in together(2, peer)}) == 1
