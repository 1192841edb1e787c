"""The simulated cluster against queueing theory, closed forms and itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from satrap.tools.plan.simulate.cluster import StepWork, simulate
from tests.tools.plan.simulate.setups import SOME, setup

NOTHING = StepWork(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_a_step_of_one_worker_in_sync_takes_the_sum_of_what_happens_one_after_another() -> None:
    w = SOME
    shard = max(w.push + w.update, w.push + w.send) + w.lookup  # the lookup waits behind the update
    assert simulate(setup(), w).step_seconds == pytest.approx(w.main + shard + 2 * w.hop + w.receive)
    local = simulate(setup("local"), w).step_seconds
    assert local == pytest.approx(w.main + w.push + w.send + w.receive)


def test_lookups_far_ahead_leave_the_slowest_part() -> None:
    far = setup(mode="hybrid", ahead=8)
    assert simulate(far, SOME).step_seconds == pytest.approx(SOME.main, rel=1e-3)
    slow_shard = replace(SOME, lookup=4e-3, update=3e-3)
    assert simulate(far, slow_shard).step_seconds == pytest.approx(7e-3, rel=1e-3)
    one_core = simulate(replace(far, cores=1), SOME)
    work = SOME.reader + SOME.main + SOME.send + SOME.receive + SOME.push + SOME.lookup + SOME.update
    assert one_core.step_seconds == pytest.approx(work, rel=0.03)  # work done before the first counted step


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_shard_and_workers_that_think_are_the_machine_repair_model(workers: int) -> None:
    """M/M/1//N: exponential thinking of mean Z, exponential service of mean S; throughput by mean values."""
    think, service = 3e-3, 1e-3
    held, expected = 0.0, 0.0
    for n in range(1, workers + 1):
        response = service * (1 + held)
        expected = n / (think + response)
        held = expected * response
    asked = setup(mode="async", workers=workers, together=False, steps=9000 // workers, jitter=1.0)
    found = simulate(asked, replace(NOTHING, main=think, lookup=service))
    assert found.samples_per_second / 100 == pytest.approx(expected, rel=0.05)
    assert found.shard_busy[0] == pytest.approx(expected * service, rel=0.06)


@pytest.mark.parametrize("mode", ["sync", "hybrid", "async"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("together", [False, True])
def test_every_update_is_applied_and_staleness_is_bounded(mode: str, workers: int, together: bool) -> None:
    ahead = 0 if mode == "sync" else 3
    asked = setup(mode=mode, ahead=ahead, workers=workers, shards=2, together=together, jitter=0.5)
    found = simulate(replace(asked, cores=2), SOME)
    assert found.issued == found.applied == 200 * workers
    assert max(found.own) == ahead
    assert found.own.total() == 200 * workers
    assert found.own[ahead] >= (200 - ahead) * workers
    assert found.others.total() == 200 * workers
    if mode == "sync":
        assert found.others == {0: 200 * workers}
    if mode != "async" and workers > 1:  # networks step together
        assert max(found.others) <= (workers - 1) * (ahead + 2)


def test_queues_that_are_computed_are_those_played_through() -> None:
    for mode, workers in (("hybrid", 4), ("async", 4), ("sync", 3)):
        asked = setup(mode=mode, ahead=0 if mode == "sync" else 2, workers=workers, shards=3, hot=2.0)
        spread = replace(asked, together=False, bandwidth=1e30)
        both = [simulate(one, replace(SOME, lookup=3e-3)).step_seconds for one in (asked, spread)]
        assert both[0] == pytest.approx(both[1], rel=0.01)


def test_what_goes_wrong_takes_its_time() -> None:
    asked = setup(workers=2, shards=2, together=False, steps=400)
    plain = simulate(asked, SOME)
    lost = simulate(replace(asked, lost=0.7), SOME)
    assert lost.seconds - plain.seconds == pytest.approx(0.7, abs=0.01)
    assert lost.taken.max() > 0.69
    straggling = simulate(replace(asked, straggler=3.0), SOME)
    assert straggling.step_seconds - plain.step_seconds == pytest.approx(2 * SOME.main, rel=0.02)
    hot = simulate(replace(asked, mode="hybrid", ahead=8, hot=3.0), replace(SOME, lookup=8e-3))
    work = 2 * 1.5 * (8e-3 + SOME.update)  # of two workers; the first shard has 3 of 4 parts, times 2 shards
    assert hot.step_seconds == pytest.approx(work, rel=0.02)
    full = simulate(replace(asked, bandwidth=2e6, background=1e6), replace(SOME, received=1e4))
    assert full.step_seconds > plain.step_seconds + 5e-3


def test_a_network_delays_each_way_and_a_sum_is_a_ring() -> None:
    plain, far = (simulate(setup(latency=d), SOME).step_seconds for d in (0.0, 2e-3))
    assert far - plain == pytest.approx(4e-3)
    asked = setup(mode="hybrid", ahead=4, workers=5, together=False, latency=1e-3, bandwidth=1e8, dense=1e6)
    own = replace(NOTHING, main=1e-3)
    ring = 8 * 1e-3 + 8 * 1e6 / 5 / 1e8
    assert simulate(asked, own).step_seconds == pytest.approx(1e-3 + ring, rel=0.01)


def test_bytes_take_the_network_of_a_worker_and_of_a_shard() -> None:
    """A lookup of 1 MB goes behind an update of as many; 3 MB come back, from the shard and to the worker."""
    asked = setup(together=False, bandwidth=1e9)
    found = simulate(asked, replace(NOTHING, lookup=1e-9, sent=2e6, received=3e6))
    assert found.step_seconds == pytest.approx(2e-3 + 3e-3 + 3e-3, rel=1e-4)
    assert found.shard_busy[0] == pytest.approx(4e-3 / 8e-3, rel=0.01)
    assert (found.sent, found.received) == (2e6, 3e6)


@pytest.mark.parametrize(("sent", "received"), [(3e6, 1e6), (1e6, 3e6)])
def test_three_all_to_alls_share_the_bytes_of_a_step(sent: float, received: float) -> None:
    """Two fetch rows; that of the update passes during the sum."""
    asked = setup("collective", workers=2, together=False, bandwidth=1e9, latency=1e-3, dense=1e6)
    found = simulate(asked, replace(NOTHING, sent=sent, received=received))
    assert found.step_seconds == pytest.approx(2 * (1e-3 + 1e-3) + 2 * 1e-3 + 1e-3, rel=1e-6)


def test_the_first_fifth_is_left_out_and_all_work_is_counted() -> None:
    w = SOME
    found = simulate(setup("local", workers=3, together=False), w)
    assert (found.steps, len(found.taken), len(found.lookups)) == (159, 159, 160)
    assert found.seconds == pytest.approx(found.taken.sum())
    alone = w.reader + w.main + w.send + w.receive + w.push
    assert found.core_seconds == pytest.approx(3 * 200 * (alone + w.other), rel=0.01)
    assert simulate(setup("local"), w).core_seconds == pytest.approx(200 * alone, rel=0.01)


def test_the_same_seed_gives_the_same_times() -> None:
    asked = setup(mode="hybrid", ahead=2, workers=3, shards=2, jitter=0.3)
    first, again = (simulate(asked, SOME).taken for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, simulate(replace(asked, seed=2), SOME).taken)


@pytest.mark.slow
def test_thousands_of_hosts() -> None:
    asked = setup(mode="hybrid", ahead=4, workers=2000, shards=1000, together=False, steps=20, jitter=0.2)
    found = simulate(asked, replace(SOME, lookup=1e-6, update=1e-6))
    assert found.issued == found.applied == 40_000
    assert max(found.own) == 4
