from __future__ import annotations

from collections.abc import Sequence

import pytest

from satrap.exchange import ShardStatistics, Traffic
from satrap.exchange.telemetry import RequestTotals
from satrap.rpc.server.statistics import ServerStatistics
from satrap.train import Progress
from satrap.train.progress.shard_load import ShardLoad, summary


def looked(
    seconds: float, busy: float, requests: int, pushes: int
) -> tuple[Sequence[ShardStatistics], Traffic]:
    server = ServerStatistics(seconds=seconds, busy_seconds=busy, requests={"lookup": requests}, queued=3)
    traffic = Traffic(
        own={10: 1, 2: 3},
        others={0: 1, pushes: 3},
        lookups=RequestTotals(),
        pushes=RequestTotals(pushes, pushes * 0.5, issued=pushes + 2),
        sent=100,
        received=50,
        waiting=4,
    )
    return [ShardStatistics(rows=7, server=server)], traffic


def test_load_is_that_between_two_looks() -> None:
    load, progress = ShardLoad(), Progress()
    load.look(*looked(10.0, 1.0, 5, 4), progress, samples=10)
    assert (progress.shard_rows, progress.shard_queued) == ((7,), (3,))
    assert progress.shard_busy == pytest.approx((0.1,))
    assert progress.push_seconds == pytest.approx(0.5)
    load.look(*looked(14.0, 3.0, 25, 4), progress, samples=20)
    assert progress.shard_busy == pytest.approx((0.5,))
    assert progress.shard_requests == pytest.approx((5.0,))
    assert (progress.pushes, progress.waiting) == (2, 4)
    assert progress.others_missed == pytest.approx(4 * 3 / 4)
    assert (progress.sent_bytes_per_sample, progress.received_bytes_per_sample) == (5.0, 2.5)
    load.look(*looked(15.0, 4.0, 26, 4), progress, samples=20)
    total = load.total()
    assert total["shard_busy"] == pytest.approx([3 / 5])
    assert total["shard_requests"] == pytest.approx([21 / 5])


def test_a_shard_that_starts_anew_counts_from_its_start() -> None:
    load, progress = ShardLoad(), Progress()
    load.look(*looked(100.0, 50.0, 500, 4), progress, samples=10)
    load.look(*looked(4.0, 1.0, 8, 4), progress, samples=20)
    assert progress.shard_busy == pytest.approx((0.25,))
    assert progress.shard_requests == pytest.approx((2.0,))
    load.look(*looked(8.0, 4.0, 16, 4), progress, samples=30)
    assert load.total()["shard_busy"] == pytest.approx([4 / 8])
    assert load.total()["shard_requests"] == pytest.approx([16 / 8])


def test_a_local_store_has_no_shards() -> None:
    load, progress = ShardLoad(), Progress()
    load.look((), looked(0, 0, 0, 0)[1], progress, samples=0)
    assert progress.shard_busy == ()
    assert load.total() == {"shard_rows": [], "shard_busy": [], "shard_requests": []}


def test_staleness_is_sorted_by_number() -> None:
    found = summary(looked(0, 0, 0, 0)[1], 0)
    assert list(found["staleness"]["own"].items()) == [("2", 3), ("10", 1)]


@pytest.mark.parametrize(("samples", "each"), [(0, 100.0), (1, 100.0), (8, 12.5)])
def test_the_traffic_of_a_run_in_figures(samples: int, each: float) -> None:
    traffic = Traffic(
        own={1: 2},
        others={0: 5},
        lookups=RequestTotals(4, 2.0, issued=5),
        pushes=RequestTotals(2, 0.5, issued=4),
        sent=100,
        received=200,
        resent=3,
        waiting=4,
        rounding_forward=0.25,
        rounding_backward=0.125,
    )
    assert summary(traffic, samples) == {
        "staleness": {"own": {"1": 2}, "others": {"0": 5}},
        "lookup_seconds": 0.5,
        "push_seconds": 0.25,
        "sent_bytes_per_sample": each,
        "received_bytes_per_sample": 2 * each,
        "resent": 3,
        "waiting": 4,
        "rounding_forward": 0.25,
        "rounding_backward": 0.125,
    }


def test_pushes_and_misses_are_those_since_the_last_look() -> None:
    load, progress = ShardLoad(), Progress()
    for pushes, seconds, others in ((4, 2.0, {0: 3, 2: 1}), (6, 5.0, {0: 3, 2: 1, 8: 2})):
        traffic = Traffic({}, others, RequestTotals(), RequestTotals(pushes, seconds))
        load.look((), traffic, progress, samples=0)
    assert (progress.push_seconds, progress.others_missed) == (1.5, 8.0)
    assert (progress.sent_bytes_per_sample, progress.received_bytes_per_sample) == (0.0, 0.0)


def test_shards_that_have_come_or_gone_are_counted_anew() -> None:
    def shard(number: int, seconds: float) -> ShardStatistics:
        server = ServerStatistics(seconds=seconds, busy_seconds=seconds / 4, requests={"lookup": 8})
        return ShardStatistics(rows=7, shard=number, server=server)

    load, progress, traffic = ShardLoad(), Progress(), Traffic({}, {}, RequestTotals(), RequestTotals())
    for shards in ([shard(0, 4.0)], [shard(0, 6.0), shard(2, 2.0)], [shard(0, 8.0), shard(2, 3.0)]):
        load.look(shards, traffic, progress, samples=0)
    assert progress.shard_busy == (0.25, 0.25)
    assert progress.shard_rows == (7, 7)
    assert load.total()["shard_busy"] == [0.25, 0.25]
    assert load._worked[0].seconds == 2.0  # since the second shard came
