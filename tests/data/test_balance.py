"""Batches of equally many rows have about as many events, and each row comes once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap import Batch, Categorical, Numeric, Schema
from satrap.data import read
from satrap.data.balance import balanced
from satrap.data.remote.client import RemoteData
from satrap.errors import ConfigError
from tests.data.helpers_data import numbers, same
from tests.data.loaders import loader
from tests.support.examples import examples

SCHEMA = Schema(
    [],
    {
        "row": Numeric(),
        "seen": Categorical(dim=2, multi=True, pooling="none", separator="|", sequence="past", max_values=60),
        "rating": Numeric(sequence="past", separator="|"),
    },
)


def table(count: int = 1000) -> pa.Table:
    """Histories of 0 to 90 events, most of them short; max_values keeps 60."""
    lengths = np.minimum(np.random.default_rng(0).geometric(0.06, count) - 1, 90)
    lists = [np.arange(n) for n in lengths]
    return pa.table({"row": np.arange(count), "seen": lists, "rating": lists})


def dataset(source: Any, **options: Any) -> Any:
    found = read(source, SCHEMA, batch_size=20, shuffle=True)
    return found.with_options(**{"seed": 1, "buffer_rows": 200, "balance": "past", **options})


def events(batch: Batch) -> int:
    return len(batch.ids["seen"].values)


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 12), st.integers(0, 9))
@settings(deadline=None)
def test_sums_differ_by_no_more_than_lengths_of_one_round(values: list[int], size: int, seed: int) -> None:
    lengths = np.array(values, np.int64)
    order = np.random.default_rng(seed).permutation(len(lengths))
    found = balanced(order, lengths, size)
    assert sorted(found) == sorted(order)
    count = len(order) // size
    assert found[count * size :].tolist() == order[count * size :].tolist()
    if count:
        whole = found[: count * size]
        longest_first = np.sort(lengths[whole])[::-1].reshape(size, count)
        sums = lengths[whole].reshape(count, size).sum(1)
        assert np.ptp(sums) <= np.ptp(longest_first, axis=1).max()
        place = {row: i for i, row in enumerate(order)}
        assert all(
            np.diff([place[row] for row in batch]).min(initial=1) > 0 for batch in whole.reshape(-1, size)
        )


def test_each_batch_has_a_row_of_each_round() -> None:
    """So it has short and long ones, which time that grows with the square of the length depends on."""
    lengths = np.random.default_rng(0).permutation(60)
    found = balanced(np.arange(60), lengths, 6).reshape(10, 6)
    assert np.sort(lengths[found] // 10).tolist() == [[0, 1, 2, 3, 4, 5]] * 10


def test_which_batch_has_the_longest_row_is_random() -> None:
    random, lengths = np.random.default_rng(0), np.arange(80)
    found = [int(np.flatnonzero(balanced(random.permutation(80), lengths, 10) == 79)[0]) for _ in range(400)]
    batches = np.bincount(np.array(found) // 10, minlength=8)
    assert batches.min() > 25
    assert np.bincount(np.array(found) % 10, minlength=10).min() > 15, "and its place in the batch"


def as_file(folder: Path, kind: str) -> str:
    rows, path = table(), folder / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(rows, path, row_group_size=130)
    else:
        frame = rows.to_pandas()
        for name in ("seen", "rating"):
            frame[name] = ["|".join(map(str, one)) for one in frame[name]]
        frame.to_csv(path, index=False)
    return str(path)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_each_row_comes_once_and_batches_have_about_equally_many_events(kind: str, tmp_path: Path) -> None:
    source, spread = as_file(tmp_path, kind), {}
    for balance in (None, "past"):
        found = dataset(source, balance=balance)
        for epoch in (0, 1):
            batches = list(found.batches(epoch))
            assert [batch.size for batch in batches] == [20] * 50
            assert np.array_equal(np.sort(numbers(found, epoch)), np.arange(1000))
            sums = [events(batch) for batch in batches]
            spread[balance] = max(sums) / np.mean(sums)
        assert not np.array_equal(numbers(found, 0), numbers(found, 1))
    assert spread["past"] < 1.15 < 1.3 < spread[None]


def test_a_buffer_is_all_that_is_balanced() -> None:
    sums = [events(batch) for batch in dataset(table()).batches()]
    for start in range(0, 50, 10):
        assert np.ptp(sums[start : start + 10]) <= 3
    assert len({sum(sums[start : start + 10]) for start in range(0, 50, 10)}) > 1


@given(stop=st.integers(0, 49), epoch=st.integers(0, 2), workers=st.integers(1, 3))
@settings(max_examples=examples(30), deadline=None)
def test_resuming_anywhere_equals_never_stopping(stop: int, epoch: int, workers: int) -> None:
    found = dataset(table(), workers=workers, worker=workers - 1)
    whole = list(found.batches(epoch))
    stop %= len(whole)
    again = list(found.batches(epoch, json.loads(json.dumps(whole[stop].position))))
    assert len(again) == len(whole) - stop - 1
    for one, other in zip(whole[stop + 1 :], again, strict=True):
        assert same(one, other)
        assert one.position == other.position


def test_workers_share_each_row_once() -> None:
    parts = [numbers(dataset(table(), worker=worker, workers=3)) for worker in range(3)]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))


def test_a_loader_gives_the_same_batches() -> None:
    found = dataset(table())
    with loader({"train": found}) as (server, _):
        there = RemoteData("loader 0", server.address, "train", SCHEMA)
        for one, other in zip(there.batches(), found.batches(), strict=True):
            assert same(one, other)


def test_a_position_of_batches_that_were_not_balanced_is_refused() -> None:
    position = next(dataset(table(), balance=None).batches()).position
    with pytest.raises(ConfigError, match="belongs to other data"):
        next(dataset(table()).batches(0, position))


def test_a_sequence_that_no_feature_is_part_of_is_refused() -> None:
    with pytest.raises(ConfigError, match="no feature is part of a sequence 'pats'") as caught:
        next(dataset(table(), balance="pats").batches())
    assert "did you mean 'past'" in caught.value.fix
