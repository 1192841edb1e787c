"""Random requests, each made of the store and of its model in `model.py`."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from satrap.errors import StoreError
from satrap.optim import FTRL, SGD, Adagrad, Adam, AdamW, RowWiseAdagrad
from satrap.schema import Table
from satrap.store import Admission, Shard
from satrap.store.row_spec import plan
from tests.store.model import Model

OPTIMIZERS = [
    SGD(lr=0.1),
    SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    SGD(lr=0.1, momentum=0.5, nesterov=True, clip=1.0),
    Adagrad(lr=0.1),
    Adagrad(lr=0.1, weight_decay=0.1, initial_accumulator=0.5, bound=0.1),
    RowWiseAdagrad(lr=0.1),
    RowWiseAdagrad(lr=0.1, weight_decay=0.1, clip=0.5),
    Adam(lr=0.01, weight_decay=0.1),
    AdamW(lr=0.01, weight_decay=0.1, bound=0.02),
    FTRL(lr=0.1, l1=0.01, l2=0.1),
]
IDS = [*range(20), 2**32, 2**63, 2**64 - 1]
KEYS = st.lists(st.sampled_from(IDS), max_size=12)
TABLE = st.sampled_from(["a", "b"])
SEED = st.integers(0, 2**32 - 1)
SIZES = st.sampled_from([1e-30, 1e-3, 1.0, 1.0, 1.0, 100.0, 1e25])


def ids(keys):
    return np.array(keys, np.uint64)


def stacked(rows, like):
    """Return rows of a model, float32[n, ...], in the shape that those of the store must have."""
    return np.array(rows, np.float32).reshape(len(rows), like.shape[1])


class Requests(RuleBasedStateMachine):
    """Every rule is one request, made of the store and of the model."""

    def __init__(self, optimizer, dtype, dim, admission):
        super().__init__()
        self.tables = [Table(n, dim=dim, dtype=dtype, initial_scale=0.05) for n in ("a", "b")]
        self.optimizer, self.admission, self.dim = optimizer, admission, dim
        self.model = Model(self.tables, optimizer, seed=3, admission=admission)
        self.shard = self.open()

    def open(self, **arguments):
        return Shard(self.tables, optimizer=self.optimizer, seed=3, admission=self.admission, **arguments)

    def move(self):
        """Give rows and state to another store, which takes this one's place."""
        other = self.open()
        other.groups[0].restore(self.shard.groups[0].state())
        for chunk in self.shard.snapshot(chunk_rows=17):
            other.load(chunk.table, chunk)
        self.shard.close()
        self.shard = other

    def memory_for(self, rows):
        """Return a budget that has room for about so many rows."""
        row = plan(self.optimizer, self.dim, self.tables[0].dtype).row_bytes + 28
        gate = 0 if self.admission.open or self.admission.min_count == 1 else self.admission.memory
        return 102_400 + rows * row + gate

    @rule(table=TABLE, keys=KEYS)
    def lookup(self, table, keys):
        np.testing.assert_array_equal(self.shard.lookup(table, ids(keys)), self.model.lookup(table, keys))

    @rule(table=TABLE, keys=KEYS)
    def peek(self, table, keys):
        for mine, expected in zip(
            self.shard.peek(table, ids(keys)), self.model.peek(table, keys), strict=True
        ):
            np.testing.assert_array_equal(mine, expected)

    @rule(
        table=TABLE, keys=KEYS, seed=SEED, size=SIZES, zeros=st.booleans(), scale=st.sampled_from([1.0, 0.3])
    )
    def update(self, table, keys, seed, size, zeros, scale):
        gradients = np.random.default_rng(seed).standard_normal((len(keys), self.dim)).astype(np.float32)
        gradients *= np.float32(size)
        if zeros:
            gradients[:, seed % self.dim] = 0
        self.shard.update(table, ids(keys), gradients, lr_scale=scale)
        self.model.update(table, keys, gradients, scale)

    @rule(table=TABLE, keys=KEYS.filter(bool), bad=st.sampled_from([np.nan, np.inf, -np.inf]))
    def update_that_is_not_finite(self, table, keys, bad):
        gradients = np.ones((len(keys), self.dim), np.float32)
        gradients[-1, -1] = bad
        with pytest.raises(StoreError, match="NaN or infinite"):
            self.shard.update(table, ids(keys), gradients)

    @rule(chunk_rows=st.integers(1, 30))
    def move_to_another_store(self, chunk_rows):
        other = self.open()
        for table in ("a", "b"):
            for chunk in self.shard.export(table, chunk_rows=chunk_rows):
                other.load(table, chunk)
        other.groups[0].updates = self.model.updates
        self.shard.close()
        self.shard = other
        self.model.forget_uses()
        self.model.requests = 0
        for table in self.model.tables.values():
            table.counts.update(dict.fromkeys(table.counts, 0), created=len(table.rows))

    @rule()
    def clear(self):
        self.shard.clear()
        self.model.forget_uses()
        for table in self.model.tables.values():
            table.rows.clear()

    @invariant()
    def equal(self):
        statistics = self.shard.statistics().tables
        for name, table in self.model.tables.items():
            chunks = list(self.shard.export(name))
            assert sorted(k for c in chunks for k in c.ids.tolist()) == sorted(table.rows)
            for chunk in chunks:
                rows = [table.rows[key] for key in chunk.ids.tolist()]
                for i, column in enumerate((chunk.weights, chunk.state)):
                    np.testing.assert_array_equal(column, stacked([row[i] for row in rows], column))
            counts = {k: v for k, v in asdict(statistics[name]).items() if k in table.counts}
            assert counts == table.counts
            assert statistics[name].rows == len(table.rows)

    def teardown(self):
        self.shard.close()


ALL, STRICT = Admission(), Admission(min_count=2, probability=0.7, memory=1 << 16)
