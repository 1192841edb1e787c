"""Lost, doubled, delayed messages and dying peers: right rows, or one clear error in time."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

from satrap.errors import ConfigError, ExchangeError
from satrap.exchange.lookup import Lookup
from satrap.exchange.servers import Limits, ShardServer
from satrap.optim import SGD
from satrap.rpc.wire.frames import MessageKind
from satrap.schema import Table
from tests.contract.parties import Process, assert_equal_contents, connect, local, request, threads, train
from tests.contract.proxies import CuttingProxy, MessageProxy


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_update_is_applied_once_over_a_network_that_loses_and_doubles(seed: int) -> None:
    with threads(2) as servers, MessageProxy(servers[0].address, seed=seed, fault=0.06) as proxy:
        exchange, reference = connect([proxy.address, servers[1].address], heartbeat=0.05), local()
        mine = train(exchange, steps=60, seed=seed, ahead=4)
        theirs = train(reference, steps=60, seed=seed, ahead=4)
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
        assert_equal_contents(exchange, reference)
        assert proxy.faults > 10
        assert exchange.telemetry.traffic().resent > 0
        assert servers[0].counters.repeated > 0
        exchange.close()
        reference.close()


def test_every_update_is_applied_once_while_connections_are_cut() -> None:
    with threads(1) as servers, CuttingProxy(servers[0].address) as proxy:
        exchange, reference = connect([proxy.address], heartbeat=0.1), local()
        ended = threading.Event()

        def cut() -> None:
            while not ended.wait(0.05):
                proxy.cut()

        cutter = threading.Thread(target=cut)
        cutter.start()
        mine = train(exchange, steps=80, seed=3, ahead=4)
        ended.set()
        cutter.join()
        theirs = train(reference, steps=80, seed=3, ahead=4)
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
        assert_equal_contents(exchange, reference)
        assert proxy.connections > 2
        exchange.close()
        reference.close()


@pytest.mark.cluster
def test_a_client_that_stood_still_itself_reads_the_answer_before_it_gives_up() -> None:
    """As one that was stopped: the answer came long ago, and only its own clock says that it waited."""
    with threads(1) as servers:
        exchange = connect([servers[0].address], deadline=1.0)
        answered = threading.Event()

        def stand_still() -> None:
            exchange._shards.send(0, MessageKind.FLUSH, [], lambda *_: answered.set(), step=0)
            time.sleep(2.5)

        exchange._shards.post(stand_still)
        assert answered.wait(10)
        assert exchange.telemetry.statistics().rows == 0
        exchange.close()


def test_a_shard_with_a_short_queue_makes_the_client_wait_and_loses_nothing() -> None:
    limits = Limits(queued_messages=2, queued_bytes=4096)
    with threads(2, limits=limits) as servers:
        exchange, reference = connect([s.address for s in servers]), local()
        wanted = [request(0, list(range(300)), [])]
        for each in (exchange, reference):
            lookup = each.lookup(wanted, create=True)
            lookup.result()
            for n in range(150):
                each.apply(lookup, [np.full((300, 4), n, np.float32)], lr_scale=1.0)
            each.flush()
        assert_equal_contents(exchange, reference)
        seen = [shard.server for shard in exchange.telemetry.statistics().shards]
        assert [(s.malformed, s.repeated, s.clients) for s in seen] == [(0, 0, 1)] * 2
        exchange.close()
        reference.close()


@pytest.mark.cluster
def test_a_stopped_shard_is_named_within_the_deadline() -> None:
    with Process() as process, threads(1) as servers:
        exchange = connect([servers[0].address, process.address], deadline=3.0)
        process.popen.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(ExchangeError) as caught:
            exchange.lookup([request(0, list(range(100)), [])], create=True).result()
        assert 2.9 < time.monotonic() - start < 6.0
        assert f"shard 1 at {process.address} has not responded for 3 s" in str(caught.value)
        assert "stage: lookup" in str(caught.value)
        for call in (
            exchange.flush,
            exchange.telemetry.statistics,
            lambda: exchange.apply(Lookup(()), [], lr_scale=1.0),
        ):
            with pytest.raises(ExchangeError, match="has not responded"):
                call()
        exchange.close()


def test_a_shard_that_was_stopped_for_less_than_the_deadline_goes_on() -> None:
    with Process() as process:
        exchange, reference = connect([process.address]), local()
        process.popen.send_signal(signal.SIGSTOP)
        timer = threading.Timer(0.6, process.popen.send_signal, [signal.SIGCONT])
        timer.start()
        mine, theirs = (train(e, steps=5, seed=1) for e in (exchange, reference))
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
        exchange.close()
        reference.close()


def test_a_shard_that_came_back_empty_is_noticed() -> None:
    with Process() as process:
        exchange = connect([process.address])
        exchange.lookup([request(0, [1], [])], create=True).result()
    with Process(process.address) as again:
        assert again.address == process.address
        with pytest.raises(ExchangeError, match="does not know this client: it was restarted"):
            exchange.lookup([request(0, [1], [])], create=True).result()
        exchange.close()


def test_an_absent_shard_is_named() -> None:
    with ShardServer("127.0.0.1:0") as server:
        address = server.address
    start = time.monotonic()
    with pytest.raises(ExchangeError, match=f"shard 0 at {address} has not responded") as caught:
        connect([address], deadline=0.5)
    assert time.monotonic() - start < 2.5
    assert "stage: hello" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"seed": 3}, "seed 11 here, 3 requested"),
        ({"epoch": 2}, "epoch 1 here, 2 requested"),
        ({"tables": [Table("a", dim=4, optimizer=SGD(lr=1.0))]}, "table 'a': .* here, .*SGD.* requested"),
        ({"memory": 2**30}, "memory None here, 1073741824 requested"),
    ],
)
def test_another_configuration_is_refused_with_the_difference(
    arguments: dict[str, object], what: str
) -> None:
    with threads(1) as servers:
        exchange = connect([servers[0].address])
        with pytest.raises(ConfigError, match=what):
            connect([servers[0].address], **arguments)
        same = connect([servers[0].address])
        same.close()
        exchange.close()


def test_shards_in_another_order_are_refused() -> None:
    with threads(2) as servers:
        addresses = [s.address for s in servers]
        exchange = connect(addresses)
        with pytest.raises(ConfigError, match=r"shard [01] here, [01] requested"):
            connect(addresses[::-1])
        exchange.close()


def test_a_closed_exchange_says_so() -> None:
    with threads(1) as servers:
        exchange = connect([servers[0].address])
        exchange.close()
        exchange.close()
        with pytest.raises(ExchangeError, match="the connection is closed"):
            exchange.lookup([request(0, [1], [])], create=True)
