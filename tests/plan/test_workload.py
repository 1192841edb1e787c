from __future__ import annotations

import numpy as np
import pytest

from satrap.batch import Batch, Jagged
from satrap.errors import ConfigError, DataError
from satrap.exchange.kernels import BFLOAT16, INT8
from satrap.optim import Adagrad
from satrap.plan import Workload
from satrap.plan.workload import measure
from satrap.schema import Categorical, Schema, Table

SCHEMA = Schema(
    [],
    {
        "user": Categorical(dim=4),
        "seen": Categorical(dim=8, multi=True, pooling="mean", table="item"),
        "item": Categorical(dim=8),
        "tags": Categorical(dim=4, multi=True, pooling="none"),
    },
)
TABLES = [
    Table("user", dim=4, optimizer=Adagrad(lr=0.1)),
    Table("item", dim=8, optimizer=Adagrad(lr=0.1), dtype="bfloat16"),
    Table("tags", dim=4, optimizer=Adagrad(lr=0.1)),
]


def batches(count: int, size: int = 30, last: int = 30) -> list[Batch]:
    random = np.random.default_rng(3)
    made = []
    for i in range(count):
        n = last if i == count - 1 else size
        offsets = np.concatenate([[0], np.cumsum(random.integers(0, 4, n))]).astype(np.int64)
        bags = {"seen": 40, "tags": 5}
        ids = {name: Jagged(random.integers(0, 50, n).astype(np.uint64)) for name in ("user", "item")}
        for name, most in bags.items():
            ids[name] = Jagged(random.integers(0, most, offsets[-1]).astype(np.uint64), offsets)
        made.append(Batch(n, ids))
    return made


def ids_of(batch: Batch, *features: str) -> list[int]:
    return [int(one) for feature in features for one in batch.ids[feature].values]


def test_counts_are_those_of_sets() -> None:
    given = batches(6)
    found = measure(SCHEMA, TABLES, given, 3, forward=INT8)
    assert (found.batch_size, found.steps, found.forward, found.backward) == (30, 2, INT8, BFLOAT16)
    for load, features in zip(found.tables, (["user"], ["seen", "item"], ["tags"]), strict=True):
        every = [ids_of(batch, *features) for batch in given]
        assert load.ids == pytest.approx(np.mean([len(ids) for ids in every]))
        assert load.distinct == pytest.approx(np.mean([len(set(ids)) for ids in every]))
        steps = [set().union(*every[:3]), set().union(*every[3:])]
        assert load.distinct_all == np.mean([len(step) for step in steps])
        assert (load.rows, load.rows_from) == (len(steps[0] | steps[1]), "batches")
    assert [load.pooled_features for load in found.tables] == [1, 2, 0]
    assert [(t.weight_bytes, t.state_bytes, t.row_bytes) for t in found.tables] == [
        (16, 16, 51),
        (16, 32, 67),
        (16, 16, 51),
    ]


def test_a_shorter_last_batch_counts_only_if_there_is_no_other() -> None:
    assert measure(SCHEMA, TABLES, batches(5, last=7), 1).steps == 4
    assert measure(SCHEMA, TABLES, batches(2, last=7), 2).steps == 1
    assert measure(SCHEMA, TABLES, batches(1, last=7), 1).batch_size == 7


def test_the_most_rows_of_a_table_are_those_that_its_features_allow() -> None:
    """Missing values and those outside of a vocabulary have a row, too; two features share a table."""
    features = {
        "plain": Categorical(dim=1),
        "two": Categorical(dim=1),
        "bucketed": Categorical(dim=1, buckets=5, vocabulary=tuple("abcdefgh")),
        "weekday": Categorical(dim=1, time="weekday"),
        "age": Categorical(dim=1, time="age", boundaries=(1.0, 2.0)),
        "shared": Categorical(dim=1, table="weekday", buckets=10),
        "open": Categorical(dim=1, table="age"),
    }
    ids = {name: Jagged(np.array([4, 5, 6, 0], np.uint64)) for name in features}
    ids["two"] = Jagged(np.array([8, 0, 9, 8], np.uint64))
    tables = [
        Table(name, dim=1, optimizer=Adagrad(lr=0.1))
        for name in ("plain", "two", "bucketed", "weekday", "age")
    ]
    found = measure(Schema([], features), tables, [Batch(4, ids)], 1)
    assert [table.most for table in found.tables] == [None, 3, 6, 8 + 11, None]
    assert found.with_rows({"two": 4, "bucketed": 4}, "given").tables[1].most is None
    assert found.with_rows({"two": 4, "bucketed": 4}, "given").tables[2].most == 6


def test_a_step_needs_a_batch_of_each_worker() -> None:
    assert measure(SCHEMA, TABLES, batches(5), 2).steps == 2
    with pytest.raises(DataError, match="fewer than 3 batches"):
        measure(SCHEMA, TABLES, batches(2), 3)


def test_known_numbers_of_rows() -> None:
    found: Workload = measure(SCHEMA, TABLES, batches(1), 1)
    known = found.with_rows({"user": 10**6}, "run").with_rows({"user": 7, "tags": 5}, "given")
    assert [(t.rows, t.rows_from) for t in known.tables[::2]] == [(7, "given"), (5, "given")]
    assert known.tables[1] == found.tables[1]
    assert found.with_rows({"user": 1}, "given").tables[0].rows == 1
    with pytest.raises(ConfigError, match=r"unknown table 'users'[^§]*the tables user, item, tags"):
        found.with_rows({"users": 1}, "given")
    with pytest.raises(ConfigError, match="table 'user' cannot have 0 rows"):
        found.with_rows({"user": 0}, "given")
