"""16-bit values change rows by no more than their rounding."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.exchange.servers import Wire
from tests.contract.parties import connect, contents, local, request, threads, train


@pytest.mark.parametrize("wire", [Wire(), Wire("float16", "float16"), Wire("float32", "bfloat16")])
def test_sixteen_bits_on_the_wire_stay_close(wire: Wire) -> None:
    reference = local()
    train(reference, steps=10, seed=4)
    with threads(2) as servers:
        exchange = connect([s.address for s in servers], wire=wire)
        train(exchange, steps=10, seed=4)
        mine, theirs = contents(exchange), contents(reference)
        exchange.close()
    reference.close()
    for table, (ids, weights, state) in theirs.items():
        np.testing.assert_array_equal(mine[table][0], ids)
        np.testing.assert_allclose(mine[table][1], weights, atol=5e-3)
        np.testing.assert_allclose(mine[table][2], state, rtol=2e-2, atol=1e-6)
        assert not np.array_equal(mine[table][1], weights)


def test_sixteen_bits_halve_the_traffic() -> None:
    sizes = []
    for wire in (Wire("float32", "float32"), Wire()):
        with threads(1) as servers:
            exchange = connect([s.address for s in servers], wire=wire)
            wanted = [request(1, list(range(1000)))]
            lookup = exchange.lookup(wanted, create=True)
            exchange.update(lookup, lookup.result(), lr_scale=1.0)
            exchange.flush()
            sizes.append(exchange.telemetry.traffic())
            exchange.close()
    assert sizes[0].received - sizes[1].received > 17 * 2 * 1000 - 500
    assert sizes[0].sent - sizes[1].sent > 17 * 2 * 1000 - 500
