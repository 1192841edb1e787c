"""Short values change rows by no more than their rounding."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.exchange.servers import Wire
from tests.contract.parties import connect, contents, local, request, threads, train

Rows = dict[str, tuple[np.ndarray, ...]]


def contents_of(wire: Wire) -> tuple[Rows, Rows]:
    """Return what two shards hold after some steps, and what is exact."""
    reference = local()
    train(reference, steps=10, seed=4)
    with threads(2) as servers:
        exchange = connect([s.address for s in servers], wire=wire)
        train(exchange, steps=10, seed=4)
        found, exact = contents(exchange), contents(reference)
        exchange.close()
    reference.close()
    for table, (ids, _, _) in exact.items():
        np.testing.assert_array_equal(found[table][0], ids)
    return found, exact


@pytest.mark.parametrize("wire", [Wire(), Wire("float16", "float16"), Wire("float32", "bfloat16")])
def test_sixteen_bits_on_the_wire_stay_close(wire: Wire) -> None:
    mine, theirs = contents_of(wire)
    for table, (_, weights, state) in theirs.items():
        np.testing.assert_allclose(mine[table][1], weights, atol=5e-3)
        np.testing.assert_allclose(mine[table][2], state, rtol=2e-2, atol=1e-6)
        assert not np.array_equal(mine[table][1], weights)


def test_eight_bits_on_the_wire_stay_close_on_the_whole() -> None:
    mine, theirs = contents_of(Wire("int8", "int8"))
    for table, columns in theirs.items():
        for found, exact in zip(mine[table][1:], columns[1:], strict=True):  # a small gradient may become 0
            assert 0 < np.linalg.norm(found - exact) < 0.1 * np.linalg.norm(exact)


@pytest.mark.parametrize(("short", "saved"), [(Wire(), 17 * 2), (Wire("int8", "int8"), 17 * 3 - 4)])
def test_short_numbers_save_traffic(short: Wire, saved: int) -> None:
    sizes = []
    for wire in (Wire("float32", "float32"), short):
        with threads(1) as servers:
            # Whatever is late is not asked for again, which would count twice.
            exchange = connect([s.address for s in servers], wire=wire, heartbeat=60.0)
            wanted = [request(1, list(range(1000)))]
            lookup = exchange.lookup(wanted, create=True)
            exchange.apply(lookup, lookup.result(), lr_scale=1.0)
            exchange.flush()
            sizes.append(exchange.telemetry.traffic())
            exchange.close()
    assert sizes[0].received - sizes[1].received > saved * 1000 - 500
    assert sizes[0].sent - sizes[1].sent > saved * 1000 - 500
