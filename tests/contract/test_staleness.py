"""Staleness as the shards measure it: the schedule for own updates, the truth for those of others."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from satrap.exchange import Exchange, Lookup
from satrap.exchange.wrappers.routed import RoutedExchange
from tests.contract.parties import connect, gradients_for, random_requests, threads, train


def staleness(exchange: Exchange) -> dict[str, Mapping[int, int]]:
    traffic = exchange.telemetry.traffic()
    return {"own": traffic.own, "others": traffic.others}


@pytest.mark.parametrize("ahead", [0, pytest.param(1, marks=pytest.mark.slow), 4])
def test_own_updates_missed_are_those_of_the_schedule(exchange: Exchange, ahead: int) -> None:
    before = exchange.telemetry.traffic()
    train(exchange, steps=9, seed=3, ahead=ahead)
    after = exchange.telemetry.traffic()
    assert after.own == Counter(min(step, ahead) for step in range(9))
    assert sum(after.others.values()) == 9
    # Other workers with replicas send the shards an update of nothing in each step, which counts.
    assert after.others == {0: 9} or isinstance(getattr(exchange, "asking", None), RoutedExchange)
    for later, earlier in ((after.lookups, before.lookups), (after.pushes, before.pushes)):
        assert later.count - earlier.count == 9
        assert later.in_flight == 0
        assert later.seconds > earlier.seconds


def test_evaluation_and_batches_without_update_count_nothing(exchange: Exchange) -> None:
    wanted = random_requests(np.random.default_rng(1))
    exchange.lookup(wanted, create=False).result()
    exchange.lookup(wanted, create=True).result()
    exchange.apply(Lookup(()), [], lr_scale=1.0)
    exchange.flush()
    assert staleness(exchange) == {"own": {}, "others": {}}


def test_updates_of_others_between_lookup_and_update_are_counted() -> None:
    rng = np.random.default_rng(2)
    with threads(2) as servers:
        addresses = [s.address for s in servers]
        one, two = (connect(addresses, rank=rank, world=2) for rank in range(2))
        for pushes in (3, 0, 5, 3):
            mine = random_requests(rng)
            lookup = one.lookup(mine, create=True)
            lookup.result()
            for _ in range(pushes):
                theirs = random_requests(rng)
                two.apply(Lookup(theirs), gradients_for(rng, theirs), lr_scale=1.0)
            two.flush()
            one.apply(lookup, gradients_for(rng, mine), lr_scale=1.0)
            one.flush()
        assert staleness(one) == {"own": {0: 4}, "others": {0: 1, 3: 2, 5: 1}}
        assert staleness(two) == {"own": {}, "others": {}}
        one.close()
        two.close()


def test_in_sync_nobody_misses_anything() -> None:
    with threads(2) as servers:
        clients = [connect([s.address for s in servers], mode="sync", rank=r, world=2) for r in range(2)]
        workers = [
            threading.Thread(target=train, args=(client,), kwargs={"steps": 8, "seed": rank})
            for rank, client in enumerate(clients)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for client in clients:
            assert staleness(client) == {"own": {0: 8}, "others": {0: 8}}
            client.close()


def test_a_server_tells_its_load() -> None:
    with threads(1) as (server,):
        assert server.statistics().requests["lookup"] == 0
        client = connect([server.address])
        train(client, steps=5, seed=1)
        told = client.telemetry.statistics().shards[0]
        found = server.statistics()
        requests = found.requests
        assert (requests["hello"], requests["lookup"], requests["update"], requests["peek"]) == (1, 5, 5, 0)
        assert 0 < found.busy_seconds < found.seconds
        assert server.service.statistics().rows == told.rows > 0
        assert found.queued == 0
        client.close()
