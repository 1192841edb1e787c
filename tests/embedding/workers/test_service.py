"""Who may talk to an embedding worker, and what becomes of messages that make no sense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from satrap.embedding.workers import connect_pooled
from satrap.errors import ConfigError, SatrapError
from satrap.exchange.servers import ServersExchange
from satrap.exchange.servers.frames import Kind
from satrap.exchange.servers.payload import pack_text
from satrap.optim import SGD
from satrap.schema import Table
from tests.embedding.workers import tier

TABLES = [Table("user", dim=4, optimizer=SGD(lr=0.1))]


def test_it_is_no_shard_and_a_shard_is_none() -> None:
    with tier.servers(1, 1) as (shards, [middle]):
        with pytest.raises(ConfigError, match="this is an embedding worker"):
            ServersExchange([middle.address], TABLES)
        with pytest.raises(ConfigError):
            connect_pooled("embedding worker 0", shards[0], shards, tier.SCHEMA, TABLES)


def test_both_must_have_the_same_shards() -> None:
    with (
        tier.servers(2, 0) as (shards, _),
        tier.embedding_worker(shards[:1]) as middle,
        pytest.raises(ConfigError, match="the worker names 2 shards, its embedding worker 1"),
    ):
        tier.trainer(shards, [middle])


def test_nonsense_is_refused_and_others_are_served() -> None:
    [batch] = tier.batches(1)
    with tier.servers(1, 1) as (shards, [middle]):
        one = tier.trainer(shards, [middle])
        ticket = one.plan.ticket(batch)
        one.exchange.lookup(ticket.requests, create=True).result()
        nonsense: list[tuple[Kind, list[Any]]] = [
            (Kind.LOOKUP, []),
            (Kind.LOOKUP, [pack_text({})]),
            (Kind.LOOKUP, [pack_text({"number": 1}), b"abc"]),
            (Kind.UPDATE, [pack_text({"number": 7, "lr_scale": 1.0})]),
            (Kind.UPDATE, [pack_text({"number": 0, "lr_scale": "x"})]),
            (Kind.CUT, [pack_text({})]),
            (Kind.HELLO, [pack_text({"schema": 3})]),
        ]
        for kind, parts in nonsense:
            line = one.exchange._line  # type: ignore[attr-defined]
            with pytest.raises(SatrapError):
                line.ask(kind, parts).result(20)
            again = tier.trainer(shards, [middle])  # the newest of a rank
            assert np.isfinite(again.exchange.lookup(ticket.requests, create=True).result()[0]).all()
            one.close()
            one = again
            ticket = one.plan.ticket(batch)
            one.exchange.lookup(ticket.requests, create=True).result()
        one.close()
