"""Replicas are never stale; beside shard servers, `tests/exchange/wrappers/test_routed.py` shows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from satrap.exchange import Lookup
from satrap.exchange.collective import Alone, FreshReplicas
from satrap.exchange.wrappers.replay import with_replays
from satrap.store import StoreConfig
from tests.contract.parties import (
    EXACT,
    SEED,
    TABLES,
    gradients_for,
    local,
    random_requests,
    request,
)
from tests.exchange.collective.parties import Meeting, ThreadRanks, together


def replicas(size: int) -> list[Any]:
    meeting, store = Meeting(size), StoreConfig(seed=SEED)
    ranks = [ThreadRanks(meeting, rank) for rank in range(size)] if size > 1 else [Alone()]
    return together([lambda r=r: FreshReplicas(r, TABLES, store=store, wire=EXACT) for r in ranks])  # type: ignore[misc]


@pytest.mark.parametrize("size", [1, 2])
def test_early_lookups_see_every_update_before_their_own_step(size: int) -> None:
    """Of ranks that train the same, as one process does."""
    rng = np.random.default_rng(1)
    wanted = [random_requests(rng, ids=80) for _ in range(6)]
    work = [(one, gradients_for(rng, one)) for one in wanted]
    reference = local()
    expected = []
    for requests, gradients in work:
        lookup = reference.lookup(requests, create=True)
        expected.append(lookup.result())
        reference.apply(lookup, gradients, lr_scale=1.0)
    reference.flush()

    def train(exchange: Any) -> list[Any]:
        lookups = [exchange.lookup(requests, create=True) for requests, _ in work]
        seen = []
        for lookup, (_, gradients) in zip(lookups, work, strict=True):
            seen.append(lookup.result())
            exchange.apply(lookup, gradients, lr_scale=1.0)
        exchange.flush()
        return seen

    made = replicas(size)
    for seen in together([lambda e=e: train(e) for e in made]):  # type: ignore[misc]
        for found, rows in zip(seen, expected, strict=True):
            for x, y in zip(found, rows, strict=True):
                np.testing.assert_array_equal(x, y)
    for one in made:
        wanted_rows = reference.lookup(wanted[0], create=False).result()
        for x, y in zip(one.here(wanted[0]), wanted_rows, strict=True):
            np.testing.assert_array_equal(x, y)
    together([one.close for one in made])
    reference.close()


def test_a_waiting_lookup_gives_a_snapshot_its_present_rows_and_is_looked_up_anew() -> None:
    wanted = [request(0, [1], [2])]
    one, other = made = replicas(2)
    lookups = [one.lookup(wanted, create=True) for _ in range(2)]
    for _ in range(2):
        other.lookup([], create=True)
    [early] = lookups[1].unpooled_rows()  # does not wait for its turn
    assert not lookups[1].rows.done()
    one.apply(lookups[0], [np.ones((2, 4), np.float32)], lr_scale=1.0)
    other.apply(Lookup(()), [], lr_scale=1.0)
    [after] = lookups[1].result(10)
    assert (after != early).all()
    assert with_replays(one, [[np.full_like(early, 7)]]) is one
    for exchange in made:
        exchange.apply(Lookup(()), [], lr_scale=1.0)
    together([one.close for one in made])
