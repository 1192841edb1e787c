"""Stores that change at random, and what they hold."""

from __future__ import annotations

import numpy as np

from satrap.optim import Adam
from satrap.schema import Table
from satrap.store import Shard

U = np.uint64


def shard(**arguments):
    tables = [Table("a", dim=3), Table("b", dim=3), Table("c", dim=5)]
    return Shard(tables, optimizer=Adam(lr=0.1), seed=3, **arguments)


def content(chunks):
    """Return {table: (ids, weights, state)} with the chunks of a table joined."""
    joined = {}
    for chunk in chunks:
        joined.setdefault(chunk.table, []).append(chunk)
    return {
        table: tuple(np.concatenate([getattr(c, f) for c in parts]) for f in ("ids", "weights", "state"))
        for table, parts in joined.items()
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for table in one:
        for mine, its in zip(one[table], other[table], strict=True):
            np.testing.assert_array_equal(mine, its)


def change(store, rng, rounds=1, ids=6000, rows=800):
    for _ in range(rounds):
        for table in "abc":
            keys = rng.integers(0, ids, rows).astype(U)
            store.lookup(table, keys)
            dim = 5 if table == "c" else 3
            store.update(table, keys, rng.standard_normal((rows, dim)).astype(np.float32))


def moved(store, into):
    """Give another store the state, then the rows."""
    for mine, its in zip(store.groups, into.groups, strict=True):
        its.restore(mine.state())
    for chunk in store.snapshot(chunk_rows=1000):
        into.load(chunk.table, chunk)


DIMS = {"a": 3, "b": 3, "c": 5}


class Copy:
    """Rows by table and id, changed by deltas alone."""

    def __init__(self):
        self.tables = {name: {} for name in DIMS}

    def apply(self, delta, between=lambda: None):
        if delta.full:
            self.__init__()
        for table, ids in delta.deleted.items():
            for key in ids.tolist():
                del self.tables[table][key]  # each of them was there
        rows = 0
        for chunk in delta.chunks:
            between()
            rows += len(chunk.ids)
            for i, key in enumerate(chunk.ids.tolist()):
                self.tables[chunk.table][key] = chunk.weights[i], chunk.state[i]
        return rows

    def assert_equal(self, expected):
        for table, (ids, weights, state) in expected.items():
            assert set(ids.tolist()) == self.tables[table].keys()
            rows = [self.tables[table][key] for key in ids.tolist()]
            for i, column in enumerate((weights, state)):
                found = np.array([row[i] for row in rows], column.dtype).reshape(column.shape)
                np.testing.assert_array_equal(found, column)
