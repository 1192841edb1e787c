"""The time of a lookup over shard servers does not matter; what all exchanges share is in tests/contract."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.exchange.lookahead import with_lookahead
from satrap.exchange.servers import Wire
from tests.contract.parties import TABLES, assert_equal_contents, connect, request, threads, train
from tests.support.exchanges import HALF, ahead, opened


@pytest.mark.parametrize(
    "wire", [Wire(), Wire("float16", "float16"), Wire("float32", "bfloat16"), Wire("int8", "int8")], ids=str
)
def test_rows_and_gradients_are_rounded_as_on_the_wire(wire: Wire) -> None:
    with opened("servers-3", TABLES, wire) as sync, ahead("servers-3", TABLES, wire) as early:
        for x, y in zip(train(sync, steps=10, seed=3), train(early, steps=10, seed=3, ahead=3), strict=True):
            np.testing.assert_array_equal(x, y)
        assert_equal_contents(sync, early)


def test_rows_that_are_here_are_not_sent_again() -> None:
    wanted = [request(0, list(range(1000)), []), request(1, [])]
    gradients = [np.ones((1000, 4), np.float32), np.ones((0, 17), np.float32)]
    with ahead("servers-1") as early:
        first = early.lookup(wanted, create=True)
        first.result()
        received = early.telemetry.traffic().received
        second = early.lookup(wanted, create=True)
        early.apply(first, gradients, lr_scale=1.0)
        second.result()
        assert early.telemetry.traffic().received - received < 1000
        early.apply(second, gradients, lr_scale=1.0)


def test_rows_of_16_bits_are_rounded_as_at_shards_that_have_served_others() -> None:
    with opened("servers-1", HALF) as sync, threads(2) as shards:
        addresses = [shard.address for shard in shards]
        first = connect(addresses, tables=HALF)
        for exchange in (sync, first):
            train(exchange, steps=7, seed=1)
        first.close()
        early = with_lookahead(connect(addresses, tables=HALF))
        for x, y in zip(train(sync, steps=10, seed=2), train(early, steps=10, seed=2, ahead=2), strict=True):
            np.testing.assert_array_equal(x, y)
        early.close()
