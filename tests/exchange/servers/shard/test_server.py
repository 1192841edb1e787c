"""A whole server: what waits for a step leaves room for what it waits for; it ends when it is asked to."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap.errors import ConfigError, ExchangeError
from satrap.exchange import Lookup
from satrap.exchange.servers import Limits, ShardServer
from satrap.exchange.servers.config import OWN_RUN, ShardConfig
from satrap.exchange.shard_map import ShardMap
from satrap.exchange.wire.sections import Section, pack
from satrap.rpc.client.client import Client, ClientOptions
from satrap.rpc.wire.frames import Header, MessageKind, digest, encode
from satrap.rpc.wire.text import pack_text, unpack_text
from satrap.store import StoreConfig
from satrap.store.snapshot.cut import Cut
from tests import faults
from tests.cluster.runs import eventually
from tests.contract.parties import SEED, TABLES, connect, request, threads
from tests.exchange.servers import journaled
from tests.support.strangers import stranger


def test_the_update_that_completes_a_step_gets_through_whatever_waits_for_it() -> None:
    """More lookups wait than the queue holds, of two workers out of three."""
    wanted = [request(0, [1, 2, 3], [])]
    ones = [np.ones((3, 4), np.float32)]
    with threads(1, limits=Limits(queued_messages=8)) as [server]:
        workers = [connect([server.address], mode="sync", rank=r, world=3, deadline=60.0) for r in range(3)]
        for worker in workers[:2]:
            lookup = worker.lookup(wanted, create=True)
            lookup.result()
            worker.apply(lookup, ones, lr_scale=1.0)
        waiting = [w.lookup(wanted, create=True) for _ in range(30) for w in workers[:2]]
        assert eventually(lambda: server.statistics().queued == 60, 5)
        before = workers[2].lookup(wanted, create=True).result()[0]
        workers[2].apply(Lookup(wanted), ones, lr_scale=1.0)
        for found in waiting:
            assert (found.result()[0] < before).all()
        for worker in workers:
            worker.close()


def test_requests_that_wait_are_bounded_for_each_client_and_the_step_goes_on() -> None:
    """A worker that asks for more than its share waits itself; the others do not."""
    wanted = [request(0, list(range(1000)), [])]
    ones = [np.ones((1000, 4), np.float32)]
    with threads(1, limits=Limits(queued_bytes=40_000)) as [server]:
        workers = [connect([server.address], mode="sync", rank=r, world=2, deadline=60.0) for r in range(2)]
        workers[0].lookup(wanted, create=True).result()
        workers[0].apply(Lookup(wanted), ones, lr_scale=1.0)
        waiting = [workers[0].lookup(wanted, create=True) for _ in range(40)]
        time.sleep(0.5)
        assert server.statistics().queued_bytes < 90_000  # of 160,000
        workers[1].lookup(wanted, create=True).result()
        workers[1].apply(Lookup(wanted), ones, lr_scale=1.0)
        for found in waiting:
            found.result()
        for worker in workers:
            worker.close()


@pytest.mark.cluster
def test_a_server_with_thousands_of_requests_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    """Those it has not begun are dropped: their clients send them again, or hear that it has gone."""
    free, running = threading.Event(), ExitStack()
    [server] = running.enter_context(threads(1, journal=tmp_path))
    clients = [
        Client("shard 0", {0: server.address}, {0: hello()}, options=ClientOptions(deadline=3.0))
        for _ in range(30)
    ]
    with faults.armed("journal.write", lambda _: free.wait(20)):
        answers = [client.ask(0, MessageKind.FLUSH) for _ in range(100) for client in clients]
        assert eventually(lambda: server.statistics().queued > 2500, 20)
        stopping = threading.Thread(target=running.close, daemon=True)
        stopping.start()
        time.sleep(0.2)
        free.set()
        stopping.join(10)
        assert not stopping.is_alive()
    failed = [answer for answer in answers if answer.exception(20) is not None]
    assert len(failed) > 2000
    assert all(isinstance(answer.exception(), ExchangeError) for answer in failed)
    for client in clients:
        client.close()


def test_answers_that_nobody_acknowledges_are_bounded_and_a_fair_client_is_served() -> None:
    """Three clients ask for rows, 1 MiB each time, and acknowledge nothing; a fourth goes on."""
    limit, ids = 4 << 20, np.arange(15_000, dtype=np.uint64)
    lookup = [bytes(memoryview(p)) for p in pack([Section(1, np.array([0, len(ids)]), ids)])]
    with threads(1, limits=Limits(answer_bytes=limit)) as [server], ExitStack() as stack:
        for client in (1, 2, 3):
            greedy = stack.enter_context(stranger(server))
            config = ShardConfig(TABLES, StoreConfig(SEED), 0, ShardMap(1)).to_dict()
            config |= {"forward": "float32", "rank": 0, "world": 1, "mode": "hybrid", "run": OWN_RUN}
            greedy.ask(Header(MessageKind.HELLO, 1, client), [pack_text(config)])
            for n in range(1, 40):
                greedy.send(encode(Header(MessageKind.LOOKUP, 1, client, n), digest(lookup)), *lookup)
        fair = connect([server.address])
        for _ in range(20):
            fair.lookup([request(1, ids.tolist())], create=True).result()
        told = fair.telemetry.statistics().shards[0].server
        assert told.queued > 60
        assert told.kept_bytes < 2.5 * limit
        fair.close()


def test_a_server_that_recovers_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    """And comes back the next time, as nothing was changed."""
    with threads(1, journal=tmp_path) as [server]:
        exchange = connect([server.address])
        for step in range(20):
            exchange.lookup([request(0, [step], [])], create=True).result()
    stopped = ShardServer("127.0.0.1:0", journal=tmp_path)
    stopped.request_stop()
    stopped.run()
    assert stopped.recovery is not None
    assert stopped.recovery.done == 0
    with ShardServer(server.address, journal=tmp_path) as again:
        assert exchange.telemetry.statistics().rows == 20
        assert again.recovery is not None
        assert again.recovery.done == 21
        exchange.close()


@pytest.mark.cluster
def test_a_slow_reader_gets_all_its_answers_and_asks_for_none_twice() -> None:
    """More answers than may wait to be sent on one connection; the others wait in the server."""
    wanted = [request(1, list(range(60_000)))]
    with threads(1) as [server]:
        exchange = connect([server.address], heartbeat=5.0)
        first = exchange.lookup(wanted, create=True).result()[0]
        answers = [exchange.lookup(wanted, create=False) for _ in range(40)]  # 4 MB each
        exchange._shards.post(lambda: time.sleep(2))
        for answer in answers:
            np.testing.assert_array_equal(answer.result()[0], first)
        assert exchange.telemetry.traffic().resent == 0
        exchange.close()


@pytest.mark.cluster
def test_what_a_client_that_is_gone_was_reading_is_let_go() -> None:
    """An export keeps the rows as they were when it began, at the cost of each that changes."""
    ids = list(range(2000))
    with threads(1, limits=Limits(idle=4.0)) as [server], stranger(server) as gone:
        fair = connect([server.address])
        lookup = fair.lookup([request(1, ids)], create=True)
        rows = lookup.result()
        gone.hello()
        gc.collect()
        before = [weakref.ref(cut) for cut in cuts()]
        gone.ask(Header(MessageKind.EXPORT, 1, 77, 1, 1), [pack_text({"table": "c"})])
        [export] = [weakref.ref(cut) for cut in cuts() if not any(cut is known() for known in before)]
        assert eventually(lambda: not any(cut is export() for cut in cuts()), 20)
        fair.apply(lookup, rows, lr_scale=1.0)
        fair.close()


def cuts() -> list[Cut]:
    """Return all cuts there are; a collection of garbage could take longer than the client is waited for."""
    return [thing for thing in gc.get_objects() if type(thing) is Cut]


def hello() -> dict[str, Any]:
    _, [text] = journaled.hello(1)
    return unpack_text(text)


def test_an_open_address_without_a_key_is_refused_before_the_journal_is_made(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with pytest.raises(ConfigError, match="key"):
        ShardServer("0.0.0.0:0", journal=journal)
    assert not journal.exists()
