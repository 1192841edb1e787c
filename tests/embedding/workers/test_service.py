"""Who may talk to an embedding worker, and what becomes of messages that make no sense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from satrap.embedding.plan import tables_of
from satrap.embedding.workers import PooledExchange
from satrap.embedding.workers.pooler import Pooler
from satrap.errors import ConfigError, SatrapError
from satrap.exchange.servers import ServersExchange, WorkerId
from satrap.exchange.servers.config import tables_to_dicts
from satrap.optim import SGD
from satrap.rpc.client.client import Client
from satrap.rpc.wire.frames import MessageKind
from satrap.rpc.wire.text import pack_text
from satrap.schema import Table
from tests.embedding.workers import tier

TABLES = [Table("user", dim=4, optimizer=SGD(lr=0.1))]


def test_it_is_no_shard_and_a_shard_is_none() -> None:
    with tier.servers(1, 1) as (shards, [middle]):
        with pytest.raises(ConfigError, match="an embedding worker received an invalid hello"):
            ServersExchange([middle.address], TABLES)
        with pytest.raises(ConfigError):
            PooledExchange("embedding worker 0", shards[0], shards, tier.SCHEMA, TABLES)


def test_both_must_have_the_same_shards() -> None:
    with (
        tier.servers(2, 0) as (shards, _),
        tier.embedding_worker(shards[:1]) as middle,
        pytest.raises(ConfigError, match="the worker has 2 shards, but its embedding worker has 1"),
    ):
        tier.trainer(shards, [middle])


def test_nonsense_is_refused_and_others_are_served() -> None:
    [batch] = tier.batches(1)
    with tier.servers(1, 1) as (shards, [middle]):
        one = tier.trainer(shards, [middle])
        ticket = one.predictor.plan.ticket(batch)
        one.exchange.lookup(ticket.requests, create=True).result()
        nonsense: list[tuple[MessageKind, list[Any]]] = [
            (MessageKind.LOOKUP, []),
            (MessageKind.LOOKUP, [pack_text({})]),
            (MessageKind.LOOKUP, [pack_text({"number": 1}), b"abc"]),
            (MessageKind.UPDATE, [pack_text({"number": 7, "lr_scale": 1.0})]),
            (MessageKind.UPDATE, [pack_text({"number": 0, "lr_scale": "x"})]),
            (MessageKind.CUT, [pack_text({})]),
            (MessageKind.LOOKUP, [pack_text({"number": float("inf"), "size": -1}), b"", b"", b""]),
            (MessageKind.UPDATE, [pack_text({"number": None, "lr_scale": 10**400})]),
            (MessageKind.UPDATE, [pack_text({"number": None, "lr_scale": float("nan")})]),
            (MessageKind.RECALL, [pack_text({"number": [0]})]),
            (MessageKind.HELLO, [pack_text({"schema": 3})]),
        ]
        for kind, parts in nonsense:
            client = one.exchange._client  # type: ignore[attr-defined]
            with pytest.raises(SatrapError):
                client.ask(0, kind, parts).result(20)
            again = tier.trainer(shards, [middle])  # the newest of a rank
            assert np.isfinite(again.exchange.lookup(ticket.requests, create=True).result()[0]).all()
            one.close()
            one = again
            ticket = one.predictor.plan.ticket(batch)
            one.exchange.lookup(ticket.requests, create=True).result()
        one.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": float("inf")},
        {"rank": True, "world": 2},
        {"world": 10**400},
        {"generation": -1},
        {"memory": "12"},
        {"memory": 10**30},
        {"deadline": 10**400},
        {"mode": ["sync"]},
        {"wire": 5},
        {"wire": ["float32", ["float32"]]},
        {"tables": []},
        {"schema": {"features": []}},
        {"tier": [1]},
        {"admission": {"min_count": 1.5, "probability": 1, "memory": 64}},
    ],
)
def test_absurd_hellos_are_refused(changes: dict[str, Any]) -> None:
    with tier.servers(1, 1) as (shards, [middle]):
        one = tier.trainer(shards, [middle])
        plain = {
            "schema": tier.SCHEMA.to_dict(),
            "tables": tables_to_dicts([Table(n, dim=4, optimizer=SGD(lr=0.1)) for n in named()]),
            **{"shards": 1, "wire": ["float32", "float32"], "seed": 0, "memory": None, "mode": "hybrid"},
            **{"rank": 0, "world": 1, "deadline": 5.0, "generation": 0},
            **{"admission": None, "eviction": None, "tier": None},
        }
        with pytest.raises(ConfigError):
            Client("embedding worker", {0: middle.address}, {0: plain | changes})
        [batch] = tier.batches(1)
        one.exchange.lookup(one.predictor.plan.ticket(batch).requests, create=True).result()
        one.close()


def named() -> set[str]:
    return {tier.SCHEMA.table_of(name) for name in tier.SCHEMA.categorical}


def test_an_error_that_nobody_foresaw_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its type, also while an answer is made: no thread of the worker ends by it."""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a mistake in satrap")

    [batch] = tier.batches(1)
    with tier.servers(1, 1) as (shards, [middle]):
        one = tier.trainer(shards, [middle])
        for place in ("_pool", "look_up"):
            with monkeypatch.context() as patch:
                patch.setattr(Pooler, place, fail)
                for _ in range(5):
                    with pytest.raises(SatrapError, match="AssertionError: a mistake in satrap"):
                        one.exchange.lookup(one.predictor.plan.ticket(batch).requests, create=True).result(20)
        assert capsys.readouterr().err.count("Traceback") <= 1  # of each place, none if it was logged before
        one.exchange.lookup(one.predictor.plan.ticket(batch).requests, create=True).result(20)
        one.close()


def test_the_run_of_a_worker_is_that_of_its_embedding_worker() -> None:
    tables = tables_of(tier.SCHEMA, SGD(lr=0.1))
    with tier.servers(1, 1) as (shards, [middle]):
        place = ("embedding worker 0", middle.address, shards, tier.SCHEMA, tables)
        one = PooledExchange(*place, worker=WorkerId(run="first"))
        with pytest.raises(ConfigError, match="the shard is held by run 'first'"):
            PooledExchange(*place, worker=WorkerId(run="second"))
        one.close()
        PooledExchange(*place, worker=WorkerId(run="second")).close()
