"""No worker waits for what another one waits for; a lost server is named."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from satrap.embedding.workers import client_threads
from satrap.errors import ConfigError, ExchangeError
from satrap.rpc.client.client import Client
from satrap.rpc.wire.frames import digest, encode
from tests.cluster.runs import eventually
from tests.contract.parties import Process
from tests.dense.threads import Board, ThreadWorkers
from tests.embedding.workers import tier
from tests.exchange.servers import journaled
from tests.support.strangers import stranger


@pytest.mark.cluster
def test_a_lookup_that_waits_for_a_step_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 waits for rank 0's update longer than its deadline, and is told that it is not forgotten."""
    monkeypatch.setattr(client_threads, "TELL", 0.2)
    [batch] = tier.batches(1)
    with tier.servers(1, 1) as (shards, middle):
        board = Board(2)
        ranks = [
            tier.trainer(shards, middle, workers=ThreadWorkers(board, rank), deadline=d)
            for rank, d in ((0, 20.0), (1, 20.0))
        ]
        ranks[1].exchange._client.peers[0].deadline = 1.0  # type: ignore[attr-defined]
        tickets = [one.predictor.plan.ticket(batch) for one in ranks]
        lookups = [
            one.exchange.lookup(t.requests, create=True) for one, t in zip(ranks, tickets, strict=True)
        ]
        found = [lookup.result() for lookup in lookups]
        ones = [[np.ones_like(a) for a in answers] for answers in found]
        ranks[1].exchange.apply(lookups[1], ones[1], lr_scale=1.0)
        waiting = ranks[1].exchange.lookup(ranks[1].predictor.plan.ticket(batch).requests, create=True)
        time.sleep(2.5)
        assert not waiting.rows.done()
        ranks[0].exchange.apply(lookups[0], ones[0], lr_scale=1.0)
        after = waiting.result(10)
        assert max(float(np.abs(a - b).max()) for a, b in zip(after, found[1], strict=True)) > 0.01
        for one in ranks:
            one.close()


@pytest.mark.cluster
def test_a_stopped_shard_is_named_by_the_worker() -> None:
    [batch] = tier.batches(1)
    with Process() as shard, tier.embedding_worker([shard.address]) as middle:
        one = tier.trainer([shard.address], [middle], deadline=5.0)
        ticket = one.predictor.plan.ticket(batch)
        one.exchange.lookup(ticket.requests, create=True).result()
        os.kill(shard.popen.pid, signal.SIGSTOP)
        with pytest.raises(ExchangeError, match="has not responded for 5 s") as caught:
            one.exchange.lookup(ticket.requests, create=True).result(30)
        assert caught.value.what.startswith("shard 0 at ")
        assert "embedding worker 0 at " in caught.value.where
        assert "stage: lookup" in caught.value.where
        os.kill(shard.popen.pid, signal.SIGCONT)
        one.close()


def test_the_threads_of_those_who_are_gone_end() -> None:
    def running() -> int:
        return sum(thread.name == "satrap-embedding" for thread in threading.enumerate())

    before = running()
    with tier.servers(1, 1) as (shards, [middle]):
        first = tier.trainer(shards, [middle])
        second = tier.trainer(shards, [middle])  # of the same rank: it takes the other's place
        with pytest.raises(ConfigError):
            Client("embedding worker 0", {0: middle.address}, {0: {"schema": 3}})
        assert eventually(lambda: running() == before + 2, 5)
        assert all(
            t.daemon for t in threading.enumerate() if t.name == "satrap-embedding"
        )  # a process may end
        assert middle.handler.statistics().workers == 1
        second.close()
        first.close()
        assert eventually(lambda: running() == before, 5)


def test_a_flood_of_hellos_leaves_no_threads_and_others_are_served() -> None:
    [batch] = tier.batches(1)
    with tier.servers(1, 1) as (shards, [middle]):
        one = tier.trainer(shards, [middle])
        ticket = one.predictor.plan.ticket(batch)
        before = threading.active_count()
        header, parts = journaled.hello(1)  # of a shard, which an embedding worker refuses
        with stranger(middle) as flood:
            for client in range(2, 600):
                flood.send(encode(replace(header, client=client), digest(parts)), *map(bytes, parts))
            one.exchange.lookup(ticket.requests, create=True).result()
            assert eventually(lambda: threading.active_count() <= before + 2, 20)
        assert middle.handler.statistics().workers == 1
        one.exchange.lookup(ticket.requests, create=False).result()
        one.close()


def test_an_embedding_worker_serves_so_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_threads, "WORKERS", 1)
    with tier.servers(1, 1) as (shards, middle):
        one = tier.trainer(shards, middle)
        with pytest.raises(ExchangeError, match="already serves 1 workers"):
            tier.trainer(shards, middle)
        one.close()
        tier.trainer(shards, middle).close()
