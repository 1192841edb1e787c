"""What a caller's requests met, counted by hand."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from satrap.exchange import Lookup, LookupRequest, kernels
from satrap.exchange.kernels import FLOAT32, FORMATS, INT8
from satrap.exchange.telemetry import (
    ExchangeStatistics,
    Meter,
    RequestTotals,
    Rounding,
    ShardStatistics,
    Telemetry,
    Traffic,
)
from satrap.exchange.wire.formats import gather_gradients
from satrap.rpc.server.statistics import ServerStatistics
from satrap.rpc.wire.text import pack_text, unpack_text
from satrap.store.arrays import address
from satrap.store.statistics import TableStatistics, TierStatistics


def lookup() -> Lookup[np.ndarray]:
    return Lookup([LookupRequest(0, np.array([1], np.uint64), np.array([0, 1]))])


def step(meter: Meter, looked_up: dict[int, tuple[int, int]], applied: dict[int, tuple[int, int]]) -> None:
    """One lookup and its update; per shard (own updates, all updates) it had applied before each."""
    wanted = lookup()
    meter.issue("lookup")()
    for shard, seen in looked_up.items():
        meter.looked_up(wanted, shard, seen)
    done = meter.issue("push", wanted)
    for shard, seen in applied.items():
        meter.applied(wanted, shard, seen)
    done()


def staleness(meter: Meter) -> tuple[dict[int, int], dict[int, int]]:
    """What lookups missed: (own updates, those of others)."""
    found = meter.report()
    return dict(found.own), dict(found.others)


def test_between_a_lookup_and_its_update_lie_those_it_missed() -> None:
    meter = Meter()
    step(meter, {0: (0, 0)}, {0: (0, 0)})
    step(meter, {0: (1, 4)}, {0: (3, 11)})
    step(meter, {0: (4, 12)}, {0: (6, 19)})
    assert staleness(meter) == ({0: 1, 2: 2}, {0: 1, 5: 2})


def test_of_several_shards_the_largest_number_counts() -> None:
    meter = Meter()
    step(meter, {0: (1, 1), 1: (1, 1), 2: (1, 1)}, {0: (2, 5), 1: (4, 5), 2: (1, 2)})
    assert staleness(meter) == ({3: 1}, {3: 1})


def test_a_shard_that_started_anew_counts_nothing() -> None:
    meter = Meter()
    step(meter, {0: (9, 9)}, {0: (0, 0)})
    step(meter, {0: (9, 9)}, {1: (10, 10)})
    step(meter, {}, {0: (10, 10)})
    assert staleness(meter) == ({}, {})


def test_requests_without_an_answer_are_in_flight() -> None:
    meter = Meter()
    answered, _, pushed = meter.issue("lookup"), meter.issue("lookup"), meter.issue("push", lookup())
    assert meter.report().lookups == RequestTotals(0, 0.0, 2)
    answered()
    found = meter.report()
    assert (found.lookups.count, found.lookups.in_flight) == (1, 1)
    assert found.pushes == RequestTotals(0, 0.0, 1)
    assert found.lookups.seconds == found.lookups.mean_seconds > 0 == found.pushes.mean_seconds
    pushed()
    found = meter.report()
    assert (found.pushes.count, found.pushes.in_flight, found.lookups.in_flight) == (1, 0, 1)


def test_a_batch_without_ids_has_no_staleness() -> None:
    meter, nothing = Meter(), Lookup[np.ndarray](())
    meter.looked_up(nothing, 0, (0, 0))
    meter.applied(nothing, 0, (1, 1))
    meter.applied(None, 0, (1, 1))
    meter.issue("push", nothing)()
    assert staleness(meter) == ({}, {})


def test_a_second_update_of_a_lookup_counts_nothing() -> None:
    meter, wanted = Meter(), lookup()
    meter.looked_up(wanted, 0, (0, 0))
    for seen in ((0, 0), (1, 1)):
        done = meter.issue("push", wanted)
        meter.applied(wanted, 0, seen)
        done()
    assert staleness(meter) == ({0: 1}, {0: 1})


def test_who_has_asked_for_nothing_has_met_nothing() -> None:
    found = Meter().report()
    assert (found.sent, found.received, found.resent, found.waiting) == (0, 0, 0, 0)
    assert (found.rounding_forward, found.rounding_backward) == (None, None)
    for one in (found.lookups, found.pushes, RequestTotals()):
        assert (one.count, one.seconds, one.in_flight, one.mean_seconds) == (0, 0.0, 0, 0.0)


def test_what_others_count_is_reported_along() -> None:
    assert Meter().report(sent=3, resent=1) == Traffic(
        {}, {}, RequestTotals(), RequestTotals(), sent=3, resent=1
    )


@pytest.mark.parametrize("code", FORMATS)
def test_rounding_is_that_of_the_first_message_and_of_some_later_ones(code: int) -> None:
    rounding, squares = Rounding(), []
    assert rounding.error is None
    for seed in range(62):
        rows = np.random.default_rng(seed).standard_normal((9, 5)).astype(np.float32) * np.float32(seed + 1)
        places, scale = np.array([3, 8, 5], np.int32), 0.25 * (seed + 1)
        raw, _ = gather_gradients(rows, places, code, scale)
        rounding.note(rows, raw, code, places, scale)
        rounding.note(rows[:0], raw[:0], code)
        if seed in (0, 61):
            exact = rows[places]
            tops = np.abs(exact).max(1, keepdims=True).astype(np.float64) / 127
            squares.append((np.square(np.rint(exact / tops) * tops - exact).sum(), np.square(exact).sum()))
    error, exact = np.sum(squares, 0)
    assert rounding.error is not None
    if code == INT8:
        assert rounding.error == pytest.approx((error / exact) ** 0.5, rel=1e-4)
    else:
        least, most = {4: (0, 0), 2: (2**-14, 2**-8)}[len(raw) // 15]
        assert least <= rounding.error <= most


@pytest.mark.parametrize("code", [code for code in FORMATS if code != FLOAT32])
def test_some_rows_of_a_long_message_tell_how_far_all_are_rounded(code: int) -> None:
    rows = np.random.default_rng(0).standard_normal((20_000, 8)).astype(np.float32)
    rows *= np.linspace(1, 100, len(rows), dtype=np.float32)[:, None]  # from one end to the other
    places, rounding = np.arange(len(rows))[::-1].astype(np.int32), Rounding()
    raw, _ = gather_gradients(rows, places, code, 1.0)
    rounding.note(rows, raw, code, places)
    sent = np.empty_like(rows)
    kernels.widen(code, address(raw), address(sent), *map(np.uint64, rows.shape))
    exact = rows[places].astype(np.float64)
    assert rounding.error == pytest.approx(
        (np.square(sent - exact).sum() / np.square(exact).sum()) ** 0.5, rel=0.1
    )


@pytest.mark.parametrize("tier", [None, TierStatistics(rows=4, prefetch_hits=2)])
def test_the_counters_of_a_shard_survive_the_wire(tier: TierStatistics | None) -> None:
    sent = ShardStatistics(
        rows=3,
        bytes=1 << 40,
        load_factor=(0.5, 0.25),
        tables={"a": TableStatistics(rows=3, evicted=9)},
        tier=tier,
        shard=1,
        steps=7,
        server=ServerStatistics(messages=5, requests={"lookup": 2}, seconds=1.5),
    )
    assert ShardStatistics.of(unpack_text(pack_text(asdict(sent)))) == sent
    assert ShardStatistics.of(unpack_text(pack_text(asdict(ShardStatistics())))) == ShardStatistics()


def counted(n: int, table: str, **transfer: int) -> Telemetry:
    """Counters of one exchange, each a multiple of a number, after so many lookups."""
    statistics = ExchangeStatistics(
        rows=n,
        bytes=10 * n,
        refused=100 * n,
        load_factor=(n / 8,),
        tables={table: TableStatistics(rows=n)},
    )
    telemetry = Telemetry(lambda: statistics, lambda: transfer)
    for _ in range(n):
        telemetry.meter.issue("lookup")
    return telemetry


def test_counters_of_several_exchanges_are_summed_by_name() -> None:
    telemetry = Telemetry.of(
        counted(1, "a", sent=1, received=10, resent=1), counted(3, "b", sent=3, received=30)
    )
    assert telemetry.statistics() == ExchangeStatistics(
        rows=4,
        bytes=40,
        refused=400,
        load_factor=(0.125, 0.375),
        tables={"a": TableStatistics(rows=1), "b": TableStatistics(rows=3)},
    )
    lookups = RequestTotals(issued=1)  # of the first alone
    assert telemetry.traffic() == Traffic(
        {}, {}, lookups, RequestTotals(), sent=4, received=40, resent=1, waiting=1
    )
