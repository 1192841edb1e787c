from __future__ import annotations

import numpy as np
import pytest

from satrap.exchange.servers.client import row_mirror as shadow_module
from satrap.exchange.servers.client.row_mirror import RowMirror
from satrap.store import Shard
from tests.contract.parties import SEED, assert_equal_contents, request, train
from tests.support.exchanges import HALF, ahead, opened

IDS = request(0, [5, 6, 7], [6])


def filled() -> tuple[Shard, RowMirror]:
    """A store with rows that have been trained, and a shadow with copies of them."""
    shard, shadow = Shard(HALF, seed=SEED), RowMirror(HALF, SEED)
    shard.lookup_group(0, IDS.ids, IDS.splits)
    shard.update_group(0, IDS.ids, IDS.splits, np.ones((4, 4), np.float32))
    shadow.add(IDS, np.hstack(shard.fetch_group(0, IDS.ids, IDS.splits)), 1)
    return shard, shadow


def test_copies_take_the_steps_of_the_rows() -> None:
    shard, shadow = filled()
    rng = np.random.default_rng(2)
    for _ in range(5):
        gradients = rng.standard_normal((4, 4)).astype(np.float32)
        shard.update_group(0, IDS.ids, IDS.splits, gradients, lr_scale=0.5)
        shadow.update(IDS, gradients, 0.5)
        np.testing.assert_array_equal(shadow.rows(IDS), shard.peek_group(0, IDS.ids, IDS.splits)[0])
    assert shadow.updates(IDS) == 6


def test_rows_that_are_here_are_newer_than_those_that_come() -> None:
    _, shadow = filled()
    before = shadow.rows(IDS)
    both = request(0, [5, 9], [])
    shadow.add(both, np.full((2, shadow.width(both)), 2, np.float32), 7)
    np.testing.assert_array_equal(shadow.rows(IDS), before)
    np.testing.assert_array_equal(shadow.rows(request(0, [9], [])), np.full((1, 4), 2))
    assert shadow.updates(IDS) == 1
    missing = shadow.missing(request(0, [5, 8, 9], [7]))
    assert (missing.ids.tolist(), missing.splits.tolist()) == ([8, 7], [0, 1, 2])


def test_only_rows_of_requests_that_wait_are_kept() -> None:
    shard, shadow = filled()
    waits = request(0, [6, 11], [6])
    shadow.keep([waits, waits])
    assert shadow.missing(waits).ids.tolist() == [11]
    assert shadow.missing(IDS).ids.tolist() == [5, 7]
    own = request(0, [6], [6])
    gradients = np.ones((2, 4), np.float32)
    shadow.update(own, gradients, 1.0)
    shard.update_group(0, own.ids, own.splits, gradients)
    np.testing.assert_array_equal(shadow.rows(own), shard.peek_group(0, own.ids, own.splits)[0])
    shadow.clear()
    assert shadow.missing(IDS).ids.tolist() == IDS.ids.tolist()


def test_rows_that_nobody_waits_for_are_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_module, "KEPT_BYTES", 3000)  # 100 rows or so
    dropped = []
    keep = shadow_module.RowMirror.keep
    monkeypatch.setattr(
        shadow_module.RowMirror, "keep", lambda self, waiting: dropped.append(1) or keep(self, waiting)
    )
    with opened("servers-1", HALF) as sync, ahead("servers-1", HALF) as early:
        for x, y in zip(train(sync, steps=25, seed=4), train(early, steps=25, seed=4, ahead=2), strict=True):
            np.testing.assert_array_equal(x, y)
        assert_equal_contents(sync, early)
    assert len(dropped) > 3
