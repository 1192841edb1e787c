"""`sync` with several workers: one optimizer step per row and step, for any number of workers and shards."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from satrap.errors import ExchangeError
from satrap.exchange import Lookup, LookupRequest
from satrap.exchange.servers import Limits, ServersExchange
from satrap.exchange.servers.shard.gradient_barrier import WorkerGradients, merge
from tests.contract.parties import (
    assert_equal_contents,
    connect,
    gradients_for,
    local,
    random_requests,
    request,
    threads,
)

STEPS = 8
Work = list[tuple[list[LookupRequest], list[np.ndarray]]]


def batches(seed: int) -> Work:
    rng = np.random.default_rng(seed)
    made = [random_requests(rng) for _ in range(STEPS)]
    return [(wanted, gradients_for(rng, wanted)) for wanted in made]


def run(exchange: ServersExchange, work: Work, seen: list[np.ndarray]) -> None:
    for wanted, gradients in work:
        lookup = exchange.lookup(wanted, create=True)
        seen += lookup.result()
        exchange.apply(lookup, gradients, lr_scale=1.0)
    exchange.flush()


def in_threads(exchanges: Sequence[ServersExchange], works: Sequence[Work]) -> list[list[np.ndarray]]:
    seen: list[list[np.ndarray]] = [[] for _ in works]
    workers = [
        threading.Thread(target=run, args=arguments) for arguments in zip(exchanges, works, seen, strict=True)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    return seen


@pytest.mark.parametrize(("world", "shards"), [(2, 1), (2, 3), (4, 2)])
def test_workers_together_take_the_step_of_one(world: int, shards: int) -> None:
    works = [batches(seed) for seed in range(world)]
    with threads(shards) as servers:
        addresses = [s.address for s in servers]
        exchanges = [connect(addresses, mode="sync", rank=r, world=world) for r in range(world)]
        seen = in_threads(exchanges, works)
        reference = local()
        rows: list[list[np.ndarray]] = [[] for _ in works]
        for step in range(STEPS):
            for r, work in enumerate(works):
                rows[r] += reference.lookup(work[step][0], create=True).result()
            shares = []
            for work in works:
                shares.append(WorkerGradients(work[step][0], [g / world for g in work[step][1]], 1.0))
            merged = merge(shares)
            reference.apply(Lookup(merged.requests), merged.gradients, lr_scale=1.0)
        for mine, theirs in zip(seen, rows, strict=True):
            for a, b in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(a, b)
        assert_equal_contents(exchanges[0], reference)
        reference.close()
        for exchange in exchanges:
            exchange.close()


def test_a_lookup_waits_for_the_other_rank() -> None:
    with threads(2) as servers:
        first, second = (
            connect([s.address for s in servers], mode="sync", rank=r, world=2) for r in range(2)
        )
        wanted = [request(0, [1], [2])]
        ones = [np.ones((2, 4), np.float32)]
        lookup = first.lookup(wanted, create=True)
        [before] = lookup.result()
        first.apply(lookup, ones, lr_scale=1.0)
        waiting = first.lookup(wanted, create=True)
        time.sleep(0.1)
        assert not waiting.rows.done()
        second.apply(Lookup(()), [], lr_scale=1.0)  # a worker without a batch takes part all the same
        [after] = waiting.result(10)
        np.testing.assert_allclose(before - after, 0.1, rtol=1e-5)
        first.close()
        second.close()


def test_a_rank_that_does_not_come_is_named() -> None:
    with threads(1, limits=Limits(wait=0.3)) as servers:
        exchanges = [connect([servers[0].address], mode="sync", rank=r, world=3) for r in range(3)]
        exchanges[0].apply(Lookup(()), [], lr_scale=1.0)
        start = time.monotonic()
        with pytest.raises(ExchangeError, match="no update came from rank 1, 2") as caught:
            exchanges[0].lookup([request(0, [1], [])], create=True).result()
        assert time.monotonic() - start < 3
        assert "stage: lookup of rank 0" in str(caught.value)
        for exchange in exchanges:
            exchange.close()


def test_a_new_worker_of_a_rank_shuts_the_old_one_out() -> None:
    with threads(1) as servers:
        address = [servers[0].address]
        old = connect(address, mode="sync", rank=0, world=2)
        other = connect(address, mode="sync", rank=1, world=2)
        old.apply(Lookup(()), [], lr_scale=1.0)
        new = connect(address, mode="sync", rank=0, world=2)
        with pytest.raises(ExchangeError, match="another worker has taken this one's rank"):
            old.telemetry.statistics()
        other.apply(Lookup(()), [], lr_scale=1.0)
        waiting = other.lookup([request(0, [1], [])], create=True)
        time.sleep(0.05)
        assert not waiting.rows.done()  # what the old worker gave to the open step went with it
        new.apply(Lookup(()), [], lr_scale=1.0)
        waiting.result(10)
        for exchange in (old, other, new):
            exchange.close()


def test_hybrid_workers_scale_their_gradients() -> None:
    with threads(2) as servers:
        address = [s.address for s in servers]
        pair = [connect(address, rank=r, world=2) for r in range(2)]
        wanted = [request(1, list(range(20)))]
        for exchange in pair:
            lookup = exchange.lookup(wanted, create=True)
            lookup.result()
            exchange.apply(lookup, [np.full((20, 17), 2.0, np.float32)], lr_scale=1.0)
            exchange.flush()
        [(_, chunk), *_] = [c for c in pair[0].rows.cut(still=True) if c[0] == "c"]
        assert (chunk.state == 2.0).all()  # two updates, each of gradients 2 * 1/2
        for exchange in pair:
            exchange.close()
