"""Lookups that get saved rows, on exchanges that hold them in this process or on shard servers."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from satrap.exchange.protocol import Exchange
from satrap.exchange.wrappers.replay import with_replays
from tests.contract.parties import connect, local, request, threads


@pytest.mark.parametrize("kind", ["local", "servers"])
def test_saved_rows_are_returned_instead_of_the_rows_in_the_store(kind: str) -> None:
    """Their update changes the present rows."""
    wanted = [request(0, [1, 2], [3])]
    with threads(1) as [server], closing(local() if kind == "local" else connect([server.address])) as made:
        exchange: Exchange = made
        [rows] = exchange.lookup(wanted, create=True).result()
        saved = [np.full_like(rows, 7.0)]
        lookup = with_replays(exchange, [saved]).lookup(wanted, create=True)
        assert lookup.result() == lookup.unpooled_rows() == saved
        exchange.apply(lookup, [np.ones_like(rows)], lr_scale=1.0)
        [after] = exchange.lookup(wanted, create=False).result()
        np.testing.assert_allclose(rows - after, 0.1, rtol=1e-5)


def test_later_lookups_get_the_rows_of_the_store() -> None:
    wanted = [request(0, [1, 2], [3])]
    with closing(local()) as exchange:
        [rows] = exchange.lookup(wanted, create=True).result()
        source = with_replays(exchange, [[rows + 1], [rows + 2]])
        assert source.lookup([], create=True).result() == []  # a step without a batch is not replayed
        assert source.lookup(wanted, create=False).result()[0].tolist() == rows.tolist()
        replayed = [source.lookup(wanted, create=True).result()[0] for _ in range(3)]
        assert [other.tolist() for other in replayed] == [(rows + n).tolist() for n in (1, 2, 0)]
