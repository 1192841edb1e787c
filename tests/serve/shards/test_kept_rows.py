"""Rows at several versions: each is what it was, while later ones are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap import Table
from satrap.errors import StoreError
from satrap.exchange.local import LocalExchange
from satrap.exchange.lookup import LookupRequest
from satrap.optim import SGD
from satrap.serve.shards import kept_rows
from satrap.serve.shards.kept_rows import HOLD_SECONDS, KeptRows, RowVersions, Version
from satrap.serve.versions import overlay
from satrap.store import Shard
from tests.serve.changes import CHANGES, IDS, TABLES, changed, chunk, read
from tests.support.examples import examples


def store() -> Shard:
    return Shard([Table(name, dim=2, optimizer=SGD(lr=0.1)) for name in TABLES], seed=3)


def version(step: int) -> Version:
    return Version(step, f"id-{step}", float(step))


def peeked(rows: KeptRows, one: Version) -> dict[str, Any]:
    splits = np.array([0, len(IDS), 2 * len(IDS)], np.int64)
    [(found, _)] = rows.peek(one, [LookupRequest(0, np.concatenate([IDS, IDS]), splits)])
    return {"a": found[: len(IDS)], "b": found[len(IDS) :]}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in TABLES)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(CHANGES, min_size=1, max_size=4), st.integers(1, 5))
def test_each_version_is_what_it_was_after_each_piece_that_is_written(
    versions: list[Any], pieces: int
) -> None:
    """The oracle is a dict by version, made by an overlay that is never written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlay, "FOLDED_ROWS", pieces)
        own = store()
        rows = KeptRows(own, version(0))
        wanted = {version(0): read(LocalExchange(own), None)}
        for number, changes in enumerate(versions, 1):
            over, wanted[version(number)] = changed(LocalExchange(own), changes)
            rows.begin(version(number), over)
            while True:
                assert all(same(peeked(rows, one), found) for one, found in wanted.items())
                if not rows.fold():
                    break
            assert all(same(peeked(rows, one), found) for one, found in wanted.items())
        while len(rows.versions) > 1:
            del wanted[rows.versions[0]]
            rows.drop_oldest()
            assert all(same(peeked(rows, one), found) for one, found in wanted.items())
        assert rows.kept_bytes == 0
        rows.close()


class Shards:
    """Versions on a clock that stands still."""

    def __init__(self, keep: int = 2, most_bytes: int = 1 << 30) -> None:
        self.now = 100.0
        self.rows = RowVersions(
            KeptRows(store(), version(0)), keep=keep, most_bytes=most_bytes, clock=lambda: self.now
        )

    def go_on(self, step: int) -> bool:
        """Begin and write a version, if there is room."""
        if not self.rows.has_room():
            return False
        over = overlay.Overlay(self.rows.store)
        over.load(chunk("a", [1, 2], step))
        over.seal()
        self.rows.begin(version(step), over)
        while self.rows.fold():
            pass
        return True

    def steps(self) -> list[int]:
        return [one.step for one in self.rows.versions]


def test_some_versions_stay_and_one_that_a_server_holds_stays_longer() -> None:
    shards = Shards(keep=2)
    for step in (1, 2, 3):
        assert shards.go_on(step)
    assert shards.steps() == [1, 2, 3]
    shards.rows.hold(7, "id-2")
    for step in (4, 5, 6):
        assert shards.go_on(step)
    assert shards.steps() == [2, 3, 4, 5, 6]
    shards.rows.hold(7, "id-5")
    assert shards.go_on(7)
    assert shards.steps() == [5, 6, 7]
    shards.rows.forget(lambda client: client == 7)
    assert shards.go_on(8)
    assert shards.steps() == [6, 7, 8]


def test_a_server_that_says_nothing_holds_nothing() -> None:
    shards = Shards(keep=1)
    shards.rows.hold(7, "id-0")
    assert all(shards.go_on(step) for step in (1, 2))
    assert shards.steps() == [0, 1, 2]
    shards.now += HOLD_SECONDS + 1
    assert shards.go_on(3)
    assert shards.steps() == [2, 3]


def test_no_more_versions_begin_once_those_that_are_held_take_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards = Shards(keep=1, most_bytes=1)
    shards.rows.hold(7, "id-0")
    assert shards.go_on(1)  # the first earlier one may take more
    assert not shards.go_on(2)
    assert shards.steps() == [0, 1]
    shards.rows.hold(7, "id-1")
    assert shards.go_on(2)
    assert shards.steps() == [1, 2]
    monkeypatch.setattr(kept_rows, "MOST_KEPT", 3)
    shards = Shards(keep=1)
    shards.rows.hold(7, "id-0")
    assert [shards.go_on(step) for step in (1, 2, 3, 4)] == [True, True, True, False]


def test_a_version_that_was_loaded_as_a_whole_comes_beside_the_others_until_nobody_holds_them() -> None:
    shards = Shards()
    assert shards.go_on(1)
    shards.rows.hold(7, "id-1")
    shards.rows.add(KeptRows(store(), version(5)))
    assert (shards.steps(), shards.rows.newest.step) == ([0, 1, 5], 5)
    shards.now += HOLD_SECONDS
    shards.rows.hold(7, "id-1")
    shards.rows.tidy()
    assert shards.steps() == [0, 1, 5]
    shards.rows.hold(7, "id-5")
    shards.rows.tidy()
    assert shards.steps() == [5]
    request = LookupRequest(0, IDS, np.array([0, len(IDS), len(IDS)], np.int64))
    with pytest.raises(StoreError, match="is gone"):
        shards.rows.peek("id-1", [request])
    assert len(shards.rows.peek("id-5", [request])[0][0]) == len(IDS)
    shards.rows.close()
