from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.exchange.collective.row_requests import RowRequest, pack, unpack
from satrap.exchange.lookup import Bags
from tests.exchange.collective.work import GROUPS, asked


@st.composite
def bagged(draw: st.DrawFn) -> list[RowRequest | None]:
    """The same with bags."""

    def bag(table: int) -> Bags:
        lengths = draw(st.lists(st.integers(0, 3), max_size=5))
        offsets = np.cumsum([0, *lengths]).astype(np.int64)
        inverse = np.array(
            draw(st.lists(st.integers(0, 9), min_size=sum(lengths), max_size=sum(lengths))), np.int32
        )
        weights = inverse.astype(np.float32) / 7 if draw(st.booleans()) else None
        return Bags(table, inverse, offsets, weights, draw(st.sampled_from(["sum", "mean", "sqrtn"])))

    return [
        ask
        and RowRequest(
            ask.ids, ask.splits, [bag(t) for t in draw(st.lists(st.integers(0, len(g.tables) - 1)))]
        )
        for ask, g in zip(draw(asked()), GROUPS, strict=True)
    ]


@settings(deadline=None)
@given(asked() | bagged(), st.binary(max_size=9))
def test_messages_come_back_with_what_follows_them(asks: list[RowRequest | None], rest: bytes) -> None:
    message = np.concatenate([pack(GROUPS, asks), np.frombuffer(rest, np.uint8)])
    found, left = unpack(GROUPS, message)
    assert left.tobytes() == rest
    for mine, theirs in zip(asks, found, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is None or theirs is None:
            continue
        np.testing.assert_array_equal(mine.ids, theirs.ids)
        np.testing.assert_array_equal(mine.splits, theirs.splits)
        for a, b in zip(mine.bags, theirs.bags, strict=True):
            assert (a.table, a.mode) == (b.table, b.mode)
            np.testing.assert_array_equal(a.offsets, b.offsets)
            np.testing.assert_array_equal(a.inverse, b.inverse)
            np.testing.assert_array_equal(
                [] if a.weights is None else a.weights, [] if b.weights is None else b.weights
            )
