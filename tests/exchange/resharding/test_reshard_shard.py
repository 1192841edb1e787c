"""A shard rehearses what it will do in a move, and keeps nothing of it; it takes a map, or refuses it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap.errors import ConfigError, StoreError
from satrap.exchange.resharding import reshard_shard
from satrap.exchange.resharding.reshard_shard import buckets_of, map_change, rehearse
from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.servers.shard import service
from satrap.exchange.servers.shard.service import Service
from satrap.exchange.shard_map import ShardMap
from satrap.optim import Adagrad
from satrap.rpc.wire.frames import FrameError, MessageKind
from satrap.schema import Table
from satrap.store import BUCKETS, Admission, Eviction, RowChunk, StoreConfig
from tests.contract.parties import Process, assert_equal_contents, connect, local, threads, train

TABLES = [
    Table("a", dim=4, optimizer=Adagrad(lr=0.1)),
    Table("b", dim=8, optimizer=Adagrad(lr=0.1), dtype="bfloat16"),
]


def hello(store: StoreConfig = StoreConfig(), **about: Any) -> dict[str, Any]:
    config = ShardConfig(TABLES, store, 1, ShardMap(2))
    plain = {"forward": "float16", "mode": "hybrid", "rank": 0, "world": 1, "rehearsal": "bfloat16"}
    return config.to_dict() | plain | about


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kinds of requests that a rehearsal executes."""
    found: list[int] = []
    execute = reshard_shard.execute

    def noted(service: Service, job: Any) -> Any:
        found.append(job.header.kind)
        return execute(service, job)

    monkeypatch.setattr(reshard_shard, "execute", noted)
    return found


SMALL = StoreConfig(memory=3_000_000, eviction=Eviction("lru"), admission=Admission(2, 1.0, 4096))


@pytest.mark.parametrize("about", [{}, {"mode": "sync", "world": 3, "rehearsal": "int8"}])
@pytest.mark.parametrize("store", [StoreConfig(), SMALL])
def test_every_kind_of_request_of_a_move_and_of_the_first_steps_is_executed(
    store: StoreConfig, about: dict[str, Any], kinds: list[int]
) -> None:
    rehearse(Service(), hello(store, **about))
    wanted = {
        MessageKind.HELLO,
        MessageKind.LOOKUP,
        MessageKind.UPDATE,
        MessageKind.PEEK,
        MessageKind.STATISTICS,
        MessageKind.EXPORT,
        MessageKind.LOAD,
    }
    assert wanted | {MessageKind.MAP} <= set(kinds)
    assert (MessageKind.FETCH in kinds) == (store.admission is None)


@pytest.mark.parametrize("rehearsal", ["float8", 3, None])
def test_a_rehearsal_in_an_unknown_format_is_refused(rehearsal: object) -> None:
    with pytest.raises(ConfigError, match="unknown wire format"):
        rehearse(Service(), hello(rehearsal=rehearsal))


def test_a_shard_is_as_new_after_its_rehearsal_and_one_that_serves_does_not_notice(kinds: list[int]) -> None:
    with threads(3) as servers:
        addresses = [server.address for server in servers]
        exchange, reference = connect(addresses[:2]), local()
        for each in (exchange, reference):
            train(each, steps=5, seed=1)
        new = exchange.map.after(np.arange(BUCKETS) // 700 % 3, [0, 1, 2])
        exchange.moves.rehearse(new, {2: addresses[2]})
        assert kinds.count(MessageKind.MAP) == 3
        assert servers[2].service.config is None
        assert_equal_contents(exchange, reference)
        exchange.moves.rehearse(new, {2: addresses[2]})
        assert kinds.count(MessageKind.MAP) == 4  # shards that serve have done so already
        exchange.moves.join(new, {2: addresses[2]})
        exchange.moves.carry(new)
        exchange.moves.adopt(new)
        for each in (exchange, reference):
            train(each, steps=5, seed=2)
        assert_equal_contents(exchange, reference)
        exchange.close()
        reference.close()


@pytest.mark.slow
@pytest.mark.cluster
def test_a_shard_without_machine_code_is_waited_for_and_compiles_nothing_after_its_first_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    with Process() as shard:
        exchange = connect([shard.address], deadline=3.0, heartbeat=0.5)
        kept = set(tmp_path.rglob("*.nbc"))
        train(exchange, steps=5, seed=1)
        assert exchange.telemetry.statistics().rows > 0
        assert list(exchange.rows.cut(still=True))
        exchange.close()
        assert set(tmp_path.rglob("*.nbc")) == kept


def test_a_rehearsal_that_fails_beside_the_requests_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreError("no memory")

    monkeypatch.setattr(service, "rehearse", fail)
    with threads(1) as [server], closing(connect([server.address])) as exchange:
        exchange.moves.rehearse(exchange.map, {})
        assert server.service.rehearsal is not None
        assert not server.service.rehearsal.is_alive()
        train(exchange, steps=1, seed=1)


def rows(ids: Sequence[int]) -> RowChunk:
    zeros = np.zeros((len(ids), 4), np.float32)
    return RowChunk("a", np.array(ids, np.uint64), zeros, zeros)


def test_a_map_takes_away_the_buckets_it_names_and_the_same_map_takes_strangers() -> None:
    config = ShardConfig(TABLES[:1], StoreConfig(), 0, ShardMap(2))
    store = config.open()
    store.load("a", rows(range(1000)))
    here = store.rows_by_bucket()[0]
    own = np.isin(np.arange(BUCKETS), list(config.map.buckets(0)))
    with pytest.raises(StoreError, match="not at 1"):
        map_change(config, store, {"map": ShardMap(2, runs=((1, 4096),)).to_dict()})
    map_change(config, store, {"map": config.map.to_dict()})()
    np.testing.assert_array_equal(store.rows_by_bucket()[0], np.where(own, here, 0))
    new = config.map.after((np.arange(BUCKETS) >= 1000).astype(np.uint16), [0, 1])
    config = map_change(config, store, {"map": new.to_dict()})()
    np.testing.assert_array_equal(store.rows_by_bucket()[0], np.where(np.arange(BUCKETS) < 1000, here, 0))
    np.testing.assert_array_equal(store.rows_by_bucket(range(10, 20))[0][10:20], here[10:20])
    assert not store.rows_by_bucket(range(10, 20))[0][20:].any()
    assert config.map == new
    store.close()


@pytest.mark.parametrize("runs", [3, [[1]], [[5, 5]], [[-1, 5]], [[0, 4097]], [[0, 4096], [0, 1]]])
def test_impossible_buckets_are_refused(runs: object) -> None:
    with pytest.raises(FrameError):
        buckets_of({"buckets": runs})
