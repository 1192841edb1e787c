"""Rows after going back are those of the earlier version, at each moment, against dicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from satrap.exchange.local import LocalExchange
from satrap.optim import SGD
from satrap.schema import Table
from satrap.serve.versions import overlay as module
from satrap.serve.versions.history import VersionHistory
from satrap.serve.versions.overlay import Overlay
from satrap.store import Eviction, RowChunk, Shard, Tier
from tests.serve.changes import CHANGES, TABLES, changed, chunk, read

STEPS = st.lists(st.tuples(CHANGES, st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=5)
"""(changes, how many slices are written, how many versions to go back) each."""


def store() -> LocalExchange:
    return LocalExchange(Shard([Table(name, dim=2, optimizer=SGD(lr=1.0)) for name in TABLES], seed=3))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLDED_ROWS", 3)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[table], other[table]) for table in TABLES)


@settings(max_examples=60, deadline=None)
@given(before=CHANGES, steps=STEPS)
def test_going_back_gives_the_rows_of_the_earlier_version(before: Any, steps: Any) -> None:
    """Also while the rows of an update are being written: what has been written goes back."""
    exchange = store()
    for table, _, ids, value in before:
        exchange.shard.load(table, chunk(table, ids, value))
    history = VersionHistory(exchange.shard, keep=9, most_bytes=1 << 20)
    versions = [(0, read(exchange, None))]
    for number, (changes, slices, back) in enumerate(steps, 1):
        over, wanted = changed(exchange, changes)
        assert history.add(versions[-1][0], "", 0.0, nn.Identity()) is None
        versions.append((number, wanted))
        for _ in range(slices):
            over.fold(history.note)
        back = min(back, len(versions) - 1)
        if back:
            step, wanted = versions[-1 - back]
            one, backwards = history.back_to(step)
            assert one.step == step
            history.cut(step)
            over.close()
            over, versions = backwards, versions[:-back]
        more = True
        while more:
            assert same(read(exchange, over), wanted)
            more = over.fold(history.note)
        assert same(read(exchange, None), wanted)
        assert history.steps == [step for step, _ in versions[:-1]]
        over.close()
    exchange.close()


def test_the_oldest_versions_go_beyond_the_limits() -> None:
    exchange = store()
    networks = [nn.Linear(1, 1) for _ in range(4)]
    history = VersionHistory(exchange.shard, keep=2, most_bytes=8_510)
    found = [history.add(step, "", 0.0, network) for step, network in enumerate(networks)]
    assert (found[:2], history.steps) == ([None, None], [2, 3])
    assert (found[2], found[3]) == (networks[0], networks[1]), "they serve again for later weights"
    assert history.bytes == 16
    ids = np.arange(100, dtype=np.uint64)
    history.note("a", ids)
    assert history.bytes == 16 + 100 * (8 + 8 + 1)
    for _ in range(4):
        history.note("a", ids)
    assert history.steps == [3], "the memory holds one"
    history.note("a", ids)
    assert (history.steps, history.bytes) == ([], 0), "or not even one"
    history.note("a", ids)
    with pytest.raises(KeyError):
        history.back_to(3)
    exchange.close()


def test_nothing_is_kept_of_a_store_with_a_tier_or_if_none_is_asked_for(tmp_path: Any) -> None:
    tier = Tier(str(tmp_path), size=1 << 20)
    tables = [Table(name, dim=2, optimizer=SGD(lr=1.0)) for name in TABLES]
    shard = Shard(tables, seed=3, memory=4_000_000, eviction=Eviction("lru"), tier=tier)
    for history in (
        VersionHistory(shard, keep=3, most_bytes=1 << 20),
        VersionHistory(store().shard, keep=0, most_bytes=1 << 20),
    ):
        network = nn.Identity()
        assert history.add(1, "", 0.0, network) is network
        history.note("a", np.arange(3, dtype=np.uint64))
        assert (history.steps, history.bytes) == ([], 0)
    shard.close()


def test_values_are_those_before_the_change() -> None:
    exchange = store()
    exchange.shard.load("a", chunk("a", [1, 2], 5))
    history = VersionHistory(exchange.shard, keep=1, most_bytes=1 << 20)
    over = Overlay(exchange.shard)
    over.load(
        RowChunk(
            "a", np.array([2, 3], np.uint64), np.full((2, 2), 9, np.float32), np.empty((2, 0), np.float32)
        )
    )
    over.seal()
    history.add(7, "seven", 1.5, network := nn.Identity())
    while over.fold(history.note):
        pass
    one, back = history.back_to(7)
    assert (one.step, one.version, one.published, one.network) == (7, "seven", 1.5, network)
    [(table, ids, rows, found)] = one.rows
    assert (table, sorted(ids.tolist())) == ("a", [2, 3])
    assert found[ids == 2].all()
    assert not found[ids == 3].any()
    assert rows[ids == 2].tolist() == [[7.0, 7.0]]
    back.close()
    exchange.close()
