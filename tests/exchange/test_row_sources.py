"""Each rank saves and restores its own rows; together they are all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from satrap.checkpoint import Series
from satrap.checkpoint.files.storage import Storage
from satrap.errors import StoreError
from satrap.store import bucket_of
from satrap.store.snapshot.cut import Cut as StoreCut
from tests.contract.parties import TABLES, assert_equal_contents, local
from tests.exchange.collective.parties import Together, members
from tests.exchange.collective.work import change, write


def filled(ranks: int, ids: range) -> Together:
    made = Together(members(ranks, TABLES))
    change(made, ids)
    return made


def test_full_cuts_and_deltas_come_back_with_any_number_of_ranks(tmp_path: Path) -> None:
    exchange, series = filled(3, range(300)), Series(str(tmp_path))
    write(series, 1, exchange.rows.cut(delta=False))
    change(exchange, range(290, 310))
    delta = exchange.rows.cut(delta=True)
    assert delta.deleted == {}
    write(series, 2, delta)
    sizes = [sum(p.stat().st_size for p in (tmp_path / f"step-0000000{n}").rglob("*.arrow")) for n in (1, 2)]
    assert sizes[1] < sizes[0] / 2
    for ranks in (1, 2, 4):
        other = Together(members(ranks, TABLES))
        other.rows.read(series.place(2), exact=True)
        assert_equal_contents(exchange, other)  # type: ignore[arg-type]
        other.close()
    one = local()
    one.rows.read(series.place(2))
    assert_equal_contents(exchange, one)  # type: ignore[arg-type]
    one.close()
    exchange.close()


def test_a_delta_is_full_on_all_ranks_if_one_cannot_give_a_delta(tmp_path: Path) -> None:
    exchange, series = filled(2, range(100)), Series(str(tmp_path))
    write(series, 1, exchange.rows.cut(delta=False))
    exchange.ranks[1].shard.changes.put_back(exchange.ranks[1].shard.changes.take(full=True, chunk_rows=64))
    exchange.ranks[1].shard.clear()  # from now on it knows no changes
    cut = exchange.rows.cut(delta=True)
    assert cut.deleted is None
    write(series, 2, cut)
    (tmp_path / "step-00000001").rename(tmp_path / "away")  # the second snapshot stands without the first
    other = Together(members(2, TABLES))
    other.rows.read(series.place(2))
    assert_equal_contents(exchange, other)  # type: ignore[arg-type]
    other.close()
    exchange.close()


def test_a_cut_that_was_given_up_on_one_rank_fails_the_save_and_the_next_one_has_all(tmp_path: Path) -> None:
    exchange, series = filled(2, range(3000)), Series(str(tmp_path))
    cut = exchange.rows.cut()
    for group in exchange.ranks[1].shard.groups:
        for kept in [one for one in group.backend.observers if isinstance(one, StoreCut)]:
            kept.give_up()  # as after ten seconds in which a slow disk took no rows
    (tmp_path / "data-x").mkdir()
    with pytest.raises(StoreError, match="an export was abandoned"):
        cut.write(Storage(str(tmp_path)), "data-x")
    write(series, 1, exchange.rows.cut())
    other = Together(members(2, TABLES))
    other.rows.read(series.place(1))
    assert_equal_contents(exchange, other)  # type: ignore[arg-type]
    for one in (exchange, other):
        one.close()


def test_each_rank_loads_its_own_rows_of_a_chunk_and_clears_them() -> None:
    exchange, other = filled(2, range(200)), Together(members(4, TABLES))
    for table, chunk in exchange.rows.cut(still=True):
        other.rows.load(table, chunk)
    assert_equal_contents(exchange, other)  # type: ignore[arg-type]
    for number, rank in enumerate(other.ranks):
        own = np.concatenate([chunk.ids for chunk in rank.shard.export("a")])
        assert set((bucket_of("a", own) * 4) >> 12) == {number}
    other.rows.clear()
    assert other.statistics().rows == 0
    for one in (exchange, other):
        one.close()
