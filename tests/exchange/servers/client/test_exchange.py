"""The client of shard servers: many table groups, and batches of any size."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.errors import ConfigError, StoreError
from satrap.exchange import LocalExchange, Lookup, LookupRequest
from satrap.exchange.servers import Limits, ShardMap
from satrap.exchange.servers.config import ShardConfig
from satrap.optim import Adagrad
from satrap.rpc.wire import text
from satrap.schema import Table
from satrap.store import Shard, StoreConfig
from tests.contract.parties import SEED, assert_equal_contents, connect, request, threads, train


@pytest.mark.cluster
def test_hundreds_of_table_groups() -> None:
    """Each group takes a part of the message for its ids and one for its gradients."""
    tables = [Table(f"t{dim}", dim=dim, optimizer=Adagrad(lr=0.1)) for dim in range(1, 200)]
    here = LocalExchange(Shard(tables, seed=SEED))
    requests = [
        LookupRequest(g.index, np.arange(g.dim, g.dim + 3, dtype=np.uint64), np.array([0, 3]))
        for g in here.groups
    ]
    assert len(requests) == 199
    with threads(1) as servers:
        there = connect([s.address for s in servers], tables=tables)
        for exchange in (here, there):
            lookup = exchange.lookup(requests, create=True)
            exchange.apply(lookup, [np.ones_like(r) for r in lookup.result()], lr_scale=1.0)
            exchange.flush()
        assert_equal_contents(here, there)
        there.close()
    here.close()


def test_shards_have_tables() -> None:
    with threads(1) as [server]:
        with pytest.raises(ConfigError, match="there are no tables"):
            connect([server.address], tables=[])
        hello = ShardConfig((), StoreConfig(), 0, ShardMap(1)).to_dict()
        with pytest.raises(ConfigError, match="there are no tables"):
            ShardConfig.from_dict(hello)


def test_an_update_larger_than_a_message_is_refused_at_once_and_whole() -> None:
    """Of two shards one could take its part: it does not get it."""
    limits = Limits(message_bytes=50_000)
    with threads(1) as [second], threads(1, limits=limits) as [first]:
        exchange = connect([first.address, second.address])
        wanted = [request(1, list(range(500)))]
        rows = exchange.lookup(wanted, create=True).result()
        many = [request(1, list(range(2000)))]
        exchange.apply(Lookup(many), [np.ones((2000, 17), np.float32)], lr_scale=1.0)
        with pytest.raises(StoreError, match=r"the update takes \d+ bytes, but the limit is 50000") as caught:
            exchange.flush()
        assert "shard 0 at " in str(caught.value)
        assert "smaller batches" in caught.value.fix
        traffic = exchange.telemetry.traffic()
        assert (traffic.resent, traffic.waiting) == (0, 0)
        again = exchange.lookup(wanted, create=False).result()
        np.testing.assert_array_equal(again[0], rows[0])
        exchange.close()


def test_a_lookup_whose_answer_is_larger_than_a_message_is_refused_alone() -> None:
    with threads(1, limits=Limits(message_bytes=50_000)) as [server]:
        exchange = connect([server.address])
        large = exchange.lookup([request(1, list(range(1000)))], create=True)
        small = exchange.lookup([request(1, list(range(10)))], create=True)
        with pytest.raises(StoreError, match="the response would take 68000 bytes, but the limit is 50000"):
            large.result()
        assert small.result()[0].shape == (10, 17)
        assert exchange.telemetry.statistics().rows == 10
        exchange.close()


def test_tables_that_take_too_much_to_describe_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with threads(1) as [server]:
        monkeypatch.setattr(text, "MAX_TEXT", 500)
        with pytest.raises(ConfigError, match="bytes, but a server reads 500"):
            connect([server.address])
        assert server.counters.messages == 0


def test_another_run_is_refused_until_the_first_has_ended() -> None:
    """Clients of one process that name no run are of one."""
    with threads(1) as [server]:
        one, same = connect([server.address]), connect([server.address])
        train(one, steps=2, seed=1)
        with pytest.raises(ConfigError, match="the shard is held by run") as caught:
            connect([server.address], run="other")
        assert "the hello is from run 'other'" in caught.value.what
        assert same.telemetry.statistics().rows > 0
        one.close()
        same.close()
        other = connect([server.address], run="other")
        assert other.telemetry.statistics().rows == 0
        with pytest.raises(ConfigError, match="the shard is held by run 'other'"):
            connect([server.address])
        other.close()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"tables": [Table("a", dim=4)]}, "table 'a' has no optimizer"),
        ({"rank": 2, "world": 2}, "rank must be 0 to world - 1, got rank 2, world 2"),
        ({"mode": "fast"}, "mode 'fast' is unknown"),
        ({"deadline": 0.0}, "the deadline must be > 0 seconds, got 0.0"),
    ],
)
def test_impossible_arguments_are_refused_before_anything_is_sent(
    arguments: dict[str, object], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        connect(["127.0.0.1:1"], **arguments)
