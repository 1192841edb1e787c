"""Rows in bounded memory: whole keys, chosen by hash, whatever the order of updates and merges."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.metrics.reservoir import KeyReservoir, mix
from tests.support.examples import examples

EMPTY = {"keys": np.empty(0, np.uint64), "values": np.empty(0, np.float32)}
Rows = dict[str, npt.NDArray[np.generic]]


def rows(keys: list[int]) -> Rows:
    return {"keys": np.array(keys, np.uint64), "values": np.arange(len(keys), dtype=np.float32)}


def filled(parts: list[list[int]], limit: int) -> KeyReservoir:
    reservoir = KeyReservoir(EMPTY, "keys", limit)
    for part in parts:
        reservoir.add(rows(part))
    return reservoir


PARTS = st.lists(st.lists(st.integers(0, 20), max_size=12), min_size=1, max_size=5)


@given(PARTS, st.sampled_from([0, 5, 20, 1000]), st.randoms())
@settings(max_examples=examples(100), deadline=None)
def test_order_and_division_do_not_matter_and_keys_are_whole(
    parts: list[list[int]], limit: int, random: object
) -> None:
    one = filled(parts, limit)
    merged = KeyReservoir(EMPTY, "keys", limit)
    shuffled = parts[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for part in shuffled:
        other = KeyReservoir(EMPTY, "keys", limit)
        other.restore(filled([part], limit).state())
        merged.merge(other)
    assert len(one) == len(merged) <= limit
    assert one.share == merged.share
    assert sorted(one.rows()["keys"]) == sorted(merged.rows()["keys"])
    every = np.array([key for part in parts for key in part], np.uint64)
    assert len(one) == (mix(every) < np.uint64(int(2**64 * one.share)) if one.level else every >= 0).sum()


def test_nothing_is_dropped_up_to_the_limit() -> None:
    assert (len(filled([[1, 2, 3]], 3)), filled([[1, 2, 3]], 3).share) == (3, 1.0)
    assert filled([[1, 2, 3]], 2).share < 1


def test_clear_removes_the_rows_and_the_level() -> None:
    reservoir = filled([list(range(50))], 4)
    reservoir.clear()
    assert (len(reservoir), reservoir.share) == (0, 1.0)
    assert reservoir.rows()["keys"].dtype == np.uint64
